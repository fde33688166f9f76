/* The process that hosts the rendezvous is killed. Writes of the other process to it then fail with an
 * error, and must not raise SIGPIPE, which ends programs that do not handle it. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(void) {
  int channel[2], done[2], status = 0;
  char byte = 0;
  tbcclUniqueId id;
  tbcclComm_t comm;
  tbcclConfig_t config = TBCCL_CONFIG_INITIALIZER;
  config.timeoutMs = 20000;
  EXPECT(pipe(channel) == 0 && pipe(done) == 0);
  signal(SIGPIPE, SIG_DFL);
  pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    CHECK(tbcclGetUniqueId(&id));
    EXPECT(write(channel[1], &id, sizeof id) == (ssize_t)sizeof id);
    CHECK(tbcclCommInitRankConfig(&comm, 2, id, 0, &config));
    CHECK(tbcclBarrier(comm, NULL));
    /* Waits until the other process has passed its barrier, which the death would make fail. */
    EXPECT(read(done[0], &byte, 1) == 1);
    kill(getpid(), SIGKILL);
  }
  EXPECT(read(channel[0], &id, sizeof id) == (ssize_t)sizeof id);
  CHECK(tbcclCommInitRankConfig(&comm, 2, id, 1, &config));
  CHECK(tbcclBarrier(comm, NULL));
  EXPECT(write(done[1], &byte, 1) == 1);
  EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  /* Each call waits for the dead peer, polls it, and asks the rendezvous for the reason. */
  for (int call = 0; call < 3; ++call) {
    tbcclResult_t result = tbcclBarrier(comm, NULL);
    EXPECT(result != tbcclSuccess && result != tbcclTimeout);
  }
  CHECK(tbcclCommDestroy(comm));
  close(channel[0]);
  close(channel[1]);
  close(done[0]);
  close(done[1]);
  puts("ok");
  return 0;
}
