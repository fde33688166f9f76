/* Communicators of some of the ranks: a grid of two rows, with sums along the rows and along the columns.
 *
 *   tbccl run -n 4 -- ./04_split */
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

int main(void) {
  tbcclComm_t world, row, column;
  int rank, size;
  CHECK(tbcclCommInitFromEnv(&world, NULL));
  CHECK(tbcclCommUserRank(world, &rank));
  CHECK(tbcclCommCount(world, &size));

  int columns = (size + 1) / 2;
  CHECK(tbcclCommSplit(world, rank / columns, rank, &row, NULL));
  CHECK(tbcclCommSplit(world, rank % columns, rank, &column, NULL));

  /* Sums along the rows, then sums these along the columns. In a grid without gaps that is the sum of all
   * ranks. */
  double part = rank + 1, sum = 0;
  CHECK(tbcclAllReduce(&part, &sum, 1, tbcclDouble, tbcclSum, row, NULL));
  int in_row, in_column;
  CHECK(tbcclCommCount(row, &in_row));
  CHECK(tbcclCommCount(column, &in_column));
  CHECK(tbcclAllReduce(&sum, &sum, 1, tbcclDouble, tbcclSum, column, NULL));
  if (size % 2 == 0 && sum != size * (size + 1) / 2.0) return 1;
  printf("rank %d: %d in its row, %d in its column, sum %g\n", rank, in_row, in_column, sum);

  CHECK(tbcclCommDestroy(column));
  CHECK(tbcclCommDestroy(row));
  CHECK(tbcclCommDestroy(world));
  return 0;
}
