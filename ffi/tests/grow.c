/* Two processes form a communicator, and two others join it later. One of the first two makes an id, with
 * which the communicator grows and the new processes join. All ranks keep their numbers, and both
 * communicators stay usable. */
#define _POSIX_C_SOURCE 200809L
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MEMBERS = 2, RANKS = 4, COUNT = 1000 };

/* Pipes that carry the ids of the first communicator and of the grown one. */
static int first[2], second[2];

static void send_id(const int* channel, const tbcclUniqueId* id, int readers) {
  for (int reader = 0; reader < readers; ++reader)
    EXPECT(write(channel[1], id, sizeof *id) == (ssize_t)sizeof *id);
}

static tbcclUniqueId receive_id(const int* channel) {
  tbcclUniqueId id;
  EXPECT(read(channel[0], &id, sizeof id) == (ssize_t)sizeof id);
  return id;
}

/* Checks an all-reduce over all ranks, to which each rank contributes its number plus one. */
static void sums(tbcclComm_t comm, int rank, int ranks) {
  int counted = 0, own = -1;
  CHECK(tbcclCommCount(comm, &counted));
  CHECK(tbcclCommUserRank(comm, &own));
  if (counted != ranks || own != rank) FAIL("rank %d of %d, and not %d of %d", own, counted, rank, ranks);
  float data[COUNT];
  for (int i = 0; i < COUNT; ++i) data[i] = (float)(rank + 1);
  CHECK(tbcclAllReduce(data, data, COUNT, tbcclFloat, tbcclSum, comm, NULL));
  for (int i = 0; i < COUNT; ++i) EXPECT(data[i] == (float)(ranks * (ranks + 1) / 2));
}

static void member(int rank) {
  tbcclUniqueId id;
  tbcclComm_t comm, grown;
  if (rank == 0) {
    CHECK(tbcclGetUniqueId(&id));
    send_id(first, &id, MEMBERS - 1);
  } else {
    id = receive_id(first);
  }
  CHECK(tbcclCommInitRank(&comm, MEMBERS, id, rank));
  sums(comm, rank, MEMBERS);
  /* The last member makes the id; the other members need none. */
  int is_maker = rank == MEMBERS - 1;
  if (is_maker) {
    CHECK(tbcclCommGetUniqueId(comm, &id));
    send_id(second, &id, RANKS - MEMBERS);
  }
  CHECK(tbcclCommGrow(comm, RANKS, is_maker ? &id : NULL, -1, &grown, NULL));
  sums(grown, rank, RANKS);
  sums(comm, rank, MEMBERS);
  CHECK(tbcclCommDestroy(comm));
  sums(grown, rank, RANKS);
  CHECK(tbcclCommDestroy(grown));
}

static void newcomer(int rank) {
  tbcclUniqueId id = receive_id(second);
  tbcclComm_t grown;
  CHECK(tbcclCommGrow(NULL, RANKS, &id, rank, &grown, NULL));
  sums(grown, rank, RANKS);
  sums(grown, rank, RANKS);
  CHECK(tbcclCommDestroy(grown));
}

int main(void) {
  int status, wrong = 0;
  EXPECT(pipe(first) == 0 && pipe(second) == 0);
  for (int rank = 0; rank < RANKS; ++rank) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
      if (rank < MEMBERS) member(rank);
      else newcomer(rank);
      exit(0);
    }
  }
  for (int rank = 0; rank < RANKS; ++rank) {
    EXPECT(wait(&status) > 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) wrong = 1;
  }
  if (!wrong) puts("ok");
  return wrong;
}
