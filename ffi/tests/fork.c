/* A process that is forked before its parent uses the library can use it. In a process that is forked
 * afterwards every call is refused, and the communicator of the parent still works. */
#define _POSIX_C_SOURCE 200809L
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void run_in_child(void (*body)(void)) {
  int status = 0;
  pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    body();
    exit(0);
  }
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static tbcclComm_t comm;

static void calls_succeed(void) {
  tbcclComm_t own;
  float x = 1, y = 0;
  CHECK(tbcclCommInitAll(&own, 1, NULL));
  CHECK(tbcclAllReduce(&x, &y, 1, tbcclFloat, tbcclSum, own, NULL));
  EXPECT(y == 1);
  CHECK(tbcclCommDestroy(own));
}

static void calls_are_refused(void) {
  tbcclComm_t own;
  tbcclUniqueId id;
  tbcclRequest_t request;
  void* memory;
  int number;
  float x = 1;
  tbcclResult_t code = tbcclInvalidUsage;
  REFUSED(code, tbcclAllReduce(&x, &x, 1, tbcclFloat, tbcclSum, comm, NULL));
  REFUSED(code, tbcclAllReduce(&x, &x, 1, tbcclFloat, tbcclSum, comm, &request));
  REFUSED(code, tbcclBarrier(comm, NULL));
  REFUSED(code, tbcclGroupStart());
  REFUSED(code, tbcclCommCount(comm, &number));
  REFUSED(code, tbcclCommAbort(comm));
  REFUSED(code, tbcclCommFinalize(comm));
  REFUSED(code, tbcclCommDestroy(comm));
  REFUSED(code, tbcclCommInitAll(&own, 1, NULL));
  REFUSED(code, tbcclCommSplit(comm, 0, 0, &own, NULL));
  REFUSED(code, tbcclGetUniqueId(&id));
  REFUSED(code, tbcclMemAlloc(&memory, 64));
  EXPECT(strstr(tbcclGetLastError(NULL), "fork") != NULL);
  EXPECT(strlen(tbcclGetErrorString(code)) > 0);
}

int main(void) {
  run_in_child(calls_succeed);
  CHECK(tbcclCommInitAll(&comm, 1, NULL));
  run_in_child(calls_are_refused);
  float x = 1, y = 0;
  CHECK(tbcclAllReduce(&x, &y, 1, tbcclFloat, tbcclSum, comm, NULL));
  EXPECT(y == 1);
  CHECK(tbcclCommDestroy(comm));
  puts("ok");
  return 0;
}
