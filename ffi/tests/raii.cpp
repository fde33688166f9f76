/* The C++ layer tbccl.hpp: every call with its result, errors with their parts, futures, groups, and the ends
 * of objects. Ranks are threads of this process. */
#include <tbccl.hpp>

#include <array>
#include <cstdio>
#include <functional>
#include <numeric>
#include <thread>

#include "check.h"

namespace {

constexpr int RANKS = 3;

/* Runs a function as each rank of a new communicator, on a thread of its own. */
void on_all_ranks(const std::function<void(tbccl::Communicator &)> &rank_main) {
  std::vector<tbccl::Communicator> comms = tbccl::Communicator::local(RANKS);
  std::vector<std::thread> threads;
  for (tbccl::Communicator &comm : comms) {
    threads.emplace_back([&rank_main, mine = std::move(comm)]() mutable {
      try {
        rank_main(mine);
      } catch (const std::exception &error) {
        FAIL("rank %d: %s", mine.rank(), error.what());
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
}

/* Returns the error that a function throws. */
tbccl::Error error_of(const std::function<void()> &function) {
  try {
    function();
  } catch (const tbccl::Error &error) {
    return error;
  }
  FAIL("no error");
}

void reductions(tbccl::Communicator &comm) {
  const std::vector<float> mine(5, static_cast<float>(comm.rank() + 1));
  std::vector<float> all(5);
  comm.all_reduce(mine, all, tbccl::sum);
  EXPECT(all == std::vector<float>(5, 6.0f));
  comm.all_reduce(all, tbccl::avg);
  EXPECT(all[4] == 6.0f);

  std::vector<float> root(comm.rank() == 1 ? 5 : 0);
  comm.reduce(mine, root, tbccl::max, 1);
  if (comm.rank() == 1) EXPECT(root == std::vector<float>(5, 3.0f));

  std::array<std::int64_t, 2 * RANKS> blocks;
  std::iota(blocks.begin(), blocks.end(), 0);
  std::int64_t block[2];
  comm.reduce_scatter(blocks, block, tbccl::sum);
  EXPECT(block[0] == RANKS * 2 * comm.rank() && block[1] == RANKS * (2 * comm.rank() + 1));

  const int one = 1;
  int before = -1;
  comm.scan(tbccl::span(&one, 1), tbccl::span(&before, 1), tbccl::sum);
  EXPECT(before == comm.rank() + 1);
  before = 0;
  comm.exclusive_scan(tbccl::span(&one, 1), tbccl::span(&before, 1), tbccl::sum);
  EXPECT(before == comm.rank());
}

void movements(tbccl::Communicator &comm) {
  std::vector<int> mine(2, comm.rank()), all(2 * RANKS);
  comm.all_gather(mine, all);
  EXPECT((all == std::vector<int>{0, 0, 1, 1, 2, 2}));
  std::vector<int> gathered(comm.rank() == 2 ? all.size() : 0);
  comm.gather(mine, gathered, 2);
  if (comm.rank() == 2) EXPECT(gathered == all);
  std::vector<int> part(2), nothing;
  comm.scatter(comm.rank() == 0 ? all : nothing, part, 0);
  EXPECT(part == mine);
  std::vector<int> exchanged(all.size());
  comm.all_to_all(all, exchanged);
  EXPECT(exchanged == std::vector<int>(all.size(), comm.rank()));
  std::complex<float> number(0, static_cast<float>(comm.rank()));
  comm.broadcast(tbccl::span(&number, 1), 1);
  EXPECT(number.imag() == 1.0f);
  if (comm.rank() == 0) comm.send(mine, 1);
  if (comm.rank() == 1) {
    comm.recv(part, 0);
    EXPECT(part[1] == 0);
  }
  comm.barrier();
}

void futures(tbccl::Communicator &comm) {
  std::vector<double> values(1000, 1.0), others(1000, 2.0);
  tbccl::Future first = comm.all_reduce_async(values, tbccl::sum);
  tbccl::Future second = comm.all_reduce_async(others, tbccl::sum);
  while (!second.wait_for(std::chrono::milliseconds(100))) {
  }
  EXPECT(!second.valid() && others[999] == 2.0 * RANKS);
  EXPECT(first.done() && values[0] == RANKS);
  first.wait();
  // A future that is assigned to, or destroyed, waits for its call.
  first = comm.all_reduce_async(values, tbccl::sum);
  first = comm.barrier_async();
  EXPECT(values[0] == RANKS * RANKS);
  { tbccl::Future dropped = comm.all_reduce_async(values, tbccl::sum); }
  EXPECT(values[0] == RANKS * RANKS * RANKS);
}

void errors(tbccl::Communicator &comm) {
  std::vector<int> mine(2), all(5);
  tbccl::Error length = error_of([&] { comm.all_gather(mine, all); });
  EXPECT(length.result() == tbcclInvalidArgument);
  EXPECT(!strcmp(length.what(), "all_gather: recv has 5 elements, and the call needs 6"));
  tbccl::Error blocks = error_of([&] { comm.all_to_all(all, all); });
  EXPECT(!strcmp(blocks.what(), "all_to_all: send has 5 elements, which are no blocks for 3 ranks"));
  tbccl::Error root = error_of([&] { comm.broadcast(mine, 7); });
  EXPECT(root.result() == tbcclInvalidArgument && strstr(root.what(), "7"));

  // A group that throws carries no call out, so the communicator can be used.
  std::vector<int> kept(2, 5);
  try {
    tbccl::group([&] {
      comm.all_reduce(kept, tbccl::sum);
      throw std::logic_error("on the way");
    });
    FAIL("no exception");
  } catch (const std::logic_error &) {
  }
  EXPECT(kept[0] == 5);

  // Ranks that disagree learn so, by the message of the library and its parts.
  std::vector<int> longer(comm.rank() == 0 ? 3 : 2);
  tbccl::Error mismatch = error_of([&] { comm.all_reduce(longer, tbccl::sum); });
  EXPECT(mismatch.result() == tbcclMismatch);
  EXPECT(strstr(mismatch.what(), "all_reduce of 3 i32") && strstr(mismatch.call(), "all_reduce"));
  if (comm.rank() == 2) return;
  tbccl::Error later = error_of([&] { comm.barrier_async().wait(); });
  EXPECT(*later.what());
  tbccl::Communicator again = comm.shrink({2}, TBCCL_SHRINK_ABORT);
  EXPECT(again.size() == 2);
  again.all_reduce(mine, tbccl::sum);
}

void families(tbccl::Communicator &comm) {
  std::optional<tbccl::Communicator> pair = comm.split(comm.rank() == 2 ? TBCCL_SPLIT_NOCOLOR : 0);
  EXPECT(pair.has_value() == (comm.rank() != 2));
  if (pair) EXPECT(pair->size() == 2);

  tbccl::CallOptions options;
  options.timeout = std::chrono::seconds(60);
  options.algorithm = "ring";
  tbccl::Communicator ring = comm.with_options(options);
  tbccl::Memory<float> memory = ring.alloc<float>(4096);
  EXPECT(memory.size() == 4096 && memory[4095] == 0.0f);
  for (float &value : memory) value = 1.0f;
  ring.all_reduce(memory, tbccl::sum);
  EXPECT(memory[4095] == RANKS);

  std::vector<float> own(1 << 16, 1.0f);
  {
    tbccl::Registration registration = comm.register_memory(own);
    comm.all_reduce(own, tbccl::sum);
  }
  EXPECT(own.back() == RANKS);
  EXPECT(comm.stats().finished >= 2);
}

/* One thread plays all ranks, in groups. */
void one_thread() {
  std::vector<tbccl::Communicator> comms = tbccl::Communicator::local(2);
  std::vector<std::vector<float>> values(2, std::vector<float>(8, 1.0f));
  std::vector<tbccl::Future> pending;
  tbccl::group([&] {
    for (int rank = 0; rank < 2; ++rank) {
      pending.push_back(comms[rank].all_reduce_async(values[rank], tbccl::sum));
    }
  });
  for (tbccl::Future &future : pending) future.wait();
  EXPECT(values[0][7] == 2.0f && values[1][0] == 2.0f);
}

/* A job whose ranks meet by an id, with a configuration. */
void by_id() {
  tbcclUniqueId id = tbccl::unique_id();
  tbccl::Config config;
  config.timeout = std::chrono::seconds(60);
  config.reproducible = true;
  config.options = "ALGO=mesh";
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      tbccl::Communicator comm = tbccl::Communicator::from_id(id, 2, rank, config);
      std::uint8_t bits = static_cast<std::uint8_t>(1 << rank);
      comm.all_reduce(tbccl::span(&bits, 1), tbccl::bit_or);
      EXPECT(bits == 3);
      comm.finalize();
      EXPECT(error_of([&] { comm.barrier(); }).result() != tbcclSuccess);
    });
  }
  for (std::thread &thread : threads) thread.join();
  config.options = "ALGO=nonsense";
  tbccl::Error unknown = error_of([&] { tbccl::Communicator::from_id(id, 1, 0, config); });
  EXPECT(strstr(unknown.what(), "nonsense"));
}

static_assert(tbccl::Type<long>::value == (sizeof(long) == 8 ? tbcclInt64 : tbcclInt32), "");
static_assert(tbccl::Type<unsigned char>::value == tbcclUint8, "");
static_assert(!std::is_copy_constructible_v<tbccl::Communicator>, "");
static_assert(!std::is_copy_constructible_v<tbccl::Future>, "");

}  // namespace

int main() {
  on_all_ranks([](tbccl::Communicator &comm) {
    reductions(comm);
    movements(comm);
    futures(comm);
    families(comm);
  });
  on_all_ranks(errors);
  one_thread();
  by_id();
  puts("ok");
  return 0;
}
