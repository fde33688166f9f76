/* Calls overlap with computation. Gradients are summed layer by layer, last layer first, in the order in
 * which a training step computes them.
 *
 *   tbccl run -n 2 -- ./03_overlap */
#include <stdio.h>
#include <stdlib.h>
#include <tbccl.h>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    tbcclResult_t called = (call);                                                                 \
    if (called != tbcclSuccess) {                                                                  \
      fprintf(stderr, "%s: %s\n", tbcclGetErrorString(called), tbcclGetLastError(NULL));           \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { LAYERS = 6, WEIGHTS = 100000 };

/* Stands for the backward pass of a layer. */
static void compute(float* gradient, int layer, int rank) {
  for (int i = 0; i < WEIGHTS; ++i) gradient[i] = (float)((layer + 1) * (rank + 1));
}

int main(void) {
  static float gradients[LAYERS][WEIGHTS];
  tbcclRequest_t requests[LAYERS];
  tbcclComm_t comm;
  int rank, size, done = 0;
  CHECK(tbcclCommInitFromEnv(&comm, NULL));
  CHECK(tbcclCommUserRank(comm, &rank));
  CHECK(tbcclCommCount(comm, &size));

  for (int layer = LAYERS - 1; layer >= 0; --layer) {
    compute(gradients[layer], layer, rank);
    /* Returns at once. The call uses the memory until it is done. */
    float* gradient = gradients[layer];
    CHECK(tbcclAllReduce(gradient, gradient, WEIGHTS, tbcclFloat, tbcclSum, comm, &requests[layer]));
  }
  CHECK(tbcclRequestTest(requests[LAYERS - 1], &done));
  if (rank == 0) printf("after the backward pass the last layer is %s\n", done ? "done" : "on its way");
  for (int layer = 0; layer < LAYERS; ++layer) {
    /* Returns every second, so that the program could do other work. */
    tbcclResult_t result;
    while ((result = tbcclRequestWait(requests[layer], 1000)) == tbcclInProgress) printf("still waiting\n");
    CHECK(result);
    CHECK(tbcclRequestFree(requests[layer]));
    float wanted = (float)((layer + 1) * size * (size + 1) / 2);
    if (gradients[layer][WEIGHTS - 1] != wanted) return 1;
  }
  if (rank == 0) printf("all %d layers are summed over %d ranks\n", LAYERS, size);
  CHECK(tbcclCommDestroy(comm));
  return 0;
}
