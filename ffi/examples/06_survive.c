/* A rank dies during a call. The other ranks get an error, and continue without it.
 *
 * The program forks its processes, which meet by a unique id. A launcher would end all of them when one
 * dies. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <tbccl.h>
#include <unistd.h>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    tbcclResult_t called = (call);                                                                 \
    if (called != tbcclSuccess) {                                                                  \
      fprintf(stderr, "%s: %s\n", tbcclGetErrorString(called), tbcclGetLastError(NULL));           \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { RANKS = 3, VICTIM = 1, COUNT = 1 << 20 };

static void work(int rank, tbcclUniqueId id) {
  static float data[COUNT];
  tbcclComm_t comm, survivors;
  tbcclResult_t result;
  CHECK(tbcclCommInitRank(&comm, RANKS, id, rank));
  for (int round = 0;; ++round) {
    if (rank == VICTIM && round == 5) kill(getpid(), SIGKILL);
    result = tbcclAllReduce(data, data, COUNT, tbcclFloat, tbcclSum, comm, NULL);
    if (result != tbcclSuccess) break;
  }
  tbcclErrorInfo_t info = TBCCL_ERROR_INFO_INITIALIZER;
  CHECK(tbcclGetLastErrorInfo(&info));
  printf("rank %d: %s\n", rank, info.text);

  /* All survivors must pass the same list of dead ranks. Here the rank is known; a program would find it
   * in the error. */
  int dead[1] = {VICTIM};
  CHECK(tbcclCommShrink(comm, dead, 1, &survivors, NULL, TBCCL_SHRINK_ABORT));
  CHECK(tbcclCommDestroy(comm));
  int size;
  float one = 1, sum = 0;
  CHECK(tbcclCommCount(survivors, &size));
  CHECK(tbcclAllReduce(&one, &sum, 1, tbcclFloat, tbcclSum, survivors, NULL));
  printf("rank %d: %d ranks go on, their sum is %g\n", rank, size, (double)sum);
  CHECK(tbcclCommDestroy(survivors));
  exit(size == RANKS - 1 && sum == (float)size ? 0 : 1);
}

int main(void) {
  int channel[2], status, wrong = 0;
  tbcclUniqueId id;
  if (pipe(channel) != 0) return 1;
  for (int rank = 0; rank < RANKS; ++rank) {
    pid_t child = fork();
    if (child < 0) return 1;
    if (child > 0) continue;
    if (rank == 0) {
      /* Makes the id after the fork, since a process must not use the library before it forks. */
      CHECK(tbcclGetUniqueId(&id));
      for (int other = 1; other < RANKS; ++other) {
        if (write(channel[1], &id, sizeof id) != (ssize_t)sizeof id) exit(1);
      }
    } else if (read(channel[0], &id, sizeof id) != (ssize_t)sizeof id) {
      exit(1);
    }
    work(rank, id);
  }
  for (int rank = 0; rank < RANKS; ++rank) {
    wait(&status);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) wrong = 1;
  }
  return wrong;
}
