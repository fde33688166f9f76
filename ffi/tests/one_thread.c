/* One thread plays all ranks of a job, as in the first example of NCCL. It makes the communicators in a
 * group, calls all of them in groups, and ends them one after the other. */
#include "check.h"

enum { RANKS = 4, COUNT = 1000 };

static tbcclComm_t comms[RANKS];
static float data[RANKS][COUNT], sums[RANKS][COUNT];

static void refill(void) {
  for (int r = 0; r < RANKS; ++r)
    for (int i = 0; i < COUNT; ++i) data[r][i] = (float)(r + i % 7);
}

static void expect_sums(void) {
  for (int r = 0; r < RANKS; ++r)
    for (int i = 0; i < COUNT; ++i) EXPECT(sums[r][i] == (float)(RANKS * (i % 7) + RANKS * (RANKS - 1) / 2));
}

static void calls(void) {
  refill();
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r)
    CHECK(tbcclAllReduce(data[r], sums[r], COUNT, tbcclFloat, tbcclSum, comms[r], NULL));
  CHECK(tbcclGroupEnd());
  expect_sums();

  /* With requests, the group ends before its calls are done. */
  tbcclRequest_t requests[RANKS];
  memset(sums, 0, sizeof sums);
  CHECK(tbcclGroupStart());
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r)
    CHECK(tbcclAllReduce(data[r], sums[r], COUNT, tbcclFloat, tbcclSum, comms[r], &requests[r]));
  CHECK(tbcclGroupEnd());
  int done = 1;
  CHECK(tbcclRequestTest(requests[0], &done));
  EXPECT(!done);
  REFUSED(tbcclInvalidUsage, tbcclRequestWait(requests[0], -1));
  CHECK(tbcclGroupEnd());
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclRequestWait(requests[r], -1));
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclRequestFree(requests[r]));
  expect_sums();

  /* All ranks pass messages around a ring in one group. */
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r) {
    CHECK(tbcclSend(data[r], COUNT, tbcclFloat, (r + 1) % RANKS, comms[r], NULL));
    CHECK(tbcclRecv(sums[r], COUNT, tbcclFloat, (r + RANKS - 1) % RANKS, comms[r], NULL));
  }
  CHECK(tbcclGroupEnd());
  for (int r = 0; r < RANKS; ++r) EXPECT(memcmp(sums[r], data[(r + RANKS - 1) % RANKS], sizeof data[0]) == 0);
}

/* A refused call makes its whole group fail, and affects no other call. */
static void refusals(void) {
  tbcclRequest_t request = NULL;
  refill();
  memset(sums, 0, sizeof sums);
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r)
    CHECK(tbcclAllReduce(data[r], sums[r], COUNT, tbcclFloat, tbcclSum, comms[r], r == 0 ? &request : NULL));
  REFUSED(tbcclInvalidArgument, tbcclBarrier(NULL, NULL));
  REFUSED(tbcclInvalidArgument, tbcclGroupEnd());
  for (int r = 0; r < RANKS; ++r) EXPECT(sums[r][1] == 0);
  REFUSED(tbcclInvalidArgument, tbcclRequestWait(request, -1));
  CHECK(tbcclRequestFree(request));
  REFUSED(tbcclInvalidUsage, tbcclGroupEnd());
  calls();
}

/* Splits in a group, into even and odd ranks. */
static void splits(void) {
  tbcclComm_t halves[RANKS];
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclCommSplit(comms[r], r % 2, -r, &halves[r], NULL));
  CHECK(tbcclGroupEnd());
  refill();
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r) {
    int rank = -1;
    CHECK(tbcclCommUserRank(halves[r], &rank));
    EXPECT(rank == (RANKS - 1 - r) / 2);
    CHECK(tbcclAllReduce(data[r], sums[r], COUNT, tbcclFloat, tbcclSum, halves[r], NULL));
  }
  CHECK(tbcclGroupEnd());
  for (int r = 0; r < RANKS; ++r)
    for (int i = 0; i < COUNT; ++i) EXPECT(sums[r][i] == (float)(2 * (i % 7) + 2 * (r % 2) + 2));
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclCommDestroy(halves[r]));
}

int main(void) {
  tbcclUniqueId id;
  CHECK(tbcclGetUniqueId(&id));
  CHECK(tbcclGroupStart());
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclCommInitRank(&comms[r], RANKS, id, r));
  EXPECT(comms[0] == NULL);
  CHECK(tbcclGroupEnd());
  calls();
  refusals();
  splits();
  /* Rank 0 is destroyed first although its rendezvous still serves the other ranks. */
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclCommDestroy(comms[r]));

  CHECK(tbcclCommInitAll(comms, RANKS, NULL));
  calls();
  for (int r = 0; r < RANKS; ++r) CHECK(tbcclCommDestroy(comms[r]));
  puts("ok");
  return 0;
}
