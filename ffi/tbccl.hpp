/*
 * tbccl.hpp: tbccl for C++17 and later, above tbccl.h. Header only.
 *
 *   tbccl::Communicator comm = tbccl::Communicator::from_env();
 *   std::vector<float> gradients(1 << 20, 1.0f);
 *   comm.all_reduce(gradients, tbccl::avg);
 *
 * Objects end what they own. An error is a tbccl::Error with the message of the library. Buffers are anything
 * with std::data and std::size (std::vector, std::array, std::span, arrays), or tbccl::span(pointer, count).
 * The element type is that of the buffer. Lengths are checked against each other before a call is made.
 *
 * A call whose name ends with _async returns a Future at once. A Future that is destroyed waits for its call,
 * which uses the buffers until then.
 *
 * tbccl.h describes each call, and ffi/README.md the guarantees.
 */

#ifndef TBCCL_HPP_
#define TBCCL_HPP_

#include <tbccl.h>

#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tbccl {

/* Reduction operations. An operation of tbcclRedOpCreatePreMulSum can be passed in their place. */
using Op = tbcclRedOp_t;
inline constexpr Op sum = tbcclSum;
inline constexpr Op prod = tbcclProd;
inline constexpr Op max = tbcclMax;
inline constexpr Op min = tbcclMin;
inline constexpr Op avg = tbcclAvg;
inline constexpr Op bit_and = tbcclBitAnd;
inline constexpr Op bit_or = tbcclBitOr;
inline constexpr Op bit_xor = tbcclBitXor;

/* A failed call: what() is the message of the library. */
class Error : public std::runtime_error {
 public:
  Error(tbcclResult_t result, const std::string &text) : std::runtime_error(text) {
    info_.result = result;
  }

  /* Returns the latest error of this thread, which a call has just reported as `result`. */
  static Error latest(tbcclResult_t result) {
    tbcclErrorInfo_t info = TBCCL_ERROR_INFO_INITIALIZER;
    const char *text = tbcclGetLastError(nullptr);
    Error error(result, *text ? text : tbcclGetErrorString(result));
    if (tbcclGetLastErrorInfo(&info) == tbcclSuccess && info.result == result) error.info_ = info;
    return error;
  }

  tbcclResult_t result() const noexcept { return info_.result; }
  /* The rank that reports; -1 if unknown. */
  int rank() const noexcept { return info_.rank; }
  /* The rank that the error is about; -1 if unknown. */
  int peer() const noexcept { return info_.peer; }
  /* The host of that rank; empty if unknown, as are the next three. */
  const char *host() const noexcept { return info_.host; }
  const char *device() const noexcept { return info_.device; }
  const char *call() const noexcept { return info_.call; }
  const char *step() const noexcept { return info_.step; }

 private:
  tbcclErrorInfo_t info_ = TBCCL_ERROR_INFO_INITIALIZER;
};

/* Throws an Error unless the result is tbcclSuccess. */
inline void check(tbcclResult_t result) {
  if (result != tbcclSuccess) throw Error::latest(result);
}

/* The bits of a number with 16 bits, for programs without a type of their own. */
struct Float16 {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

/* The element type of a C++ type. Specialize it for other types with the same bits:
 *   template <> struct tbccl::Type<my::half> { static constexpr tbcclDataType_t value = tbcclFloat16; }; */
template <class T, class = void>
struct Type;

template <>
struct Type<float> {
  static constexpr tbcclDataType_t value = tbcclFloat32;
};
template <>
struct Type<double> {
  static constexpr tbcclDataType_t value = tbcclFloat64;
};
template <>
struct Type<Float16> {
  static constexpr tbcclDataType_t value = tbcclFloat16;
};
template <>
struct Type<Bfloat16> {
  static constexpr tbcclDataType_t value = tbcclBfloat16;
};
template <>
struct Type<std::complex<float>> {
  static constexpr tbcclDataType_t value = tbcclComplex64;
};
template <>
struct Type<bool> {
  static constexpr tbcclDataType_t value = tbcclBool;
};
template <>
struct Type<std::byte> {
  static constexpr tbcclDataType_t value = tbcclUint8;
};
template <class T>
struct Type<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
 private:
  static constexpr tbcclDataType_t of(std::size_t size, bool is_signed) {
    return size == 1   ? (is_signed ? tbcclInt8 : tbcclUint8)
           : size == 2 ? (is_signed ? tbcclInt16 : tbcclUint16)
           : size == 4 ? (is_signed ? tbcclInt32 : tbcclUint32)
                       : (is_signed ? tbcclInt64 : tbcclUint64);
  }

 public:
  static constexpr tbcclDataType_t value = of(sizeof(T), std::is_signed_v<T>);
};

/* Elements in memory that belongs to another object. */
template <class T>
class Span {
 public:
  using value_type = std::remove_cv_t<T>;

  constexpr Span() = default;
  constexpr Span(T *data, std::size_t size) : data_(data), size_(size) {}

  constexpr T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr T *begin() const noexcept { return data_; }
  constexpr T *end() const noexcept { return data_ + size_; }
  constexpr T &operator[](std::size_t index) const { return data_[index]; }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
constexpr Span<T> span(T *data, std::size_t size) {
  return Span<T>(data, size);
}

template <class Buffer>
constexpr auto span(Buffer &&buffer) {
  return span(std::data(buffer), std::size(buffer));
}

/* A call in progress. It can be moved, and not copied. */
class Future {
 public:
  Future() = default;
  explicit Future(tbcclRequest_t request) : request_(request) {}
  Future(Future &&other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Future &operator=(Future &&other) noexcept {
    if (this != &other) {
      finish();
      request_ = std::exchange(other.request_, nullptr);
    }
    return *this;
  }
  ~Future() { finish(); }

  /* Whether this is a call: not after wait(), get() or release(). */
  bool valid() const noexcept { return request_ != nullptr; }

  /* Waits until the call is done. Throws its error. */
  void wait() {
    if (request_) end(tbcclRequestWait(request_, -1));
  }

  /* As wait(), for so long at most; returns whether the call is done. */
  template <class Rep, class Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout) {
    if (!request_) return true;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
    tbcclResult_t result = tbcclRequestWait(request_, left < 0 ? 0 : static_cast<std::int64_t>(left));
    if (result == tbcclInProgress) return false;
    end(result);
    return true;
  }

  /* Whether the call is done. Never waits. Throws the call's error. */
  bool done() {
    if (!request_) return true;
    int done = 0;
    tbcclResult_t result = tbcclRequestTest(request_, &done);
    if (result == tbcclSuccess && !done) return false;
    end(result);
    return true;
  }

  /* Gives the request up, for functions of tbccl.h; the caller frees it. */
  tbcclRequest_t release() noexcept { return std::exchange(request_, nullptr); }

 private:
  /* Frees the request of a call that is done, and throws its error. */
  void end(tbcclResult_t result) {
    std::optional<Error> error;
    if (result != tbcclSuccess) error = Error::latest(result);
    tbcclRequestFree(release());
    if (error) throw *std::move(error);
  }

  void finish() noexcept {
    if (!request_) return;
    tbcclRequestWait(request_, -1);
    tbcclRequestFree(release());
  }

  tbcclRequest_t request_ = nullptr;
};

/* Options of a communicator; those that are not set keep the values of the environment. */
struct Config {
  std::optional<std::chrono::milliseconds> timeout;
  /* Whether results have the same bits for every algorithm, size and transport. */
  std::optional<bool> reproducible;
  /* "shm", "tcp", "verbs", "shm+verbs", ... */
  std::string transport;
  /* Options by name, as "ALGO=ring;TCP_SOCKETS=4". */
  std::string options;

  tbcclConfig_t get() const {
    tbcclConfig_t config = TBCCL_CONFIG_INITIALIZER;
    if (timeout) config.timeoutMs = timeout->count();
    if (reproducible) {
      config.numerics = *reproducible ? TBCCL_NUMERICS_REPRODUCIBLE : TBCCL_NUMERICS_FAST;
    }
    if (!transport.empty()) config.netName = transport.c_str();
    if (!options.empty()) config.options = options.c_str();
    return config;
  }
};

/* Options of calls; those that are not set keep the communicator's values. */
struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout;
  /* "ring"; "ring,mesh", the first that can do a call; "^ring", none of these. */
  std::string algorithm;
  int segments = 0;
  std::optional<bool> reproducible;
};

/* Memory of a communicator, which its calls move without copies. It may outlive the communicator. */
template <class T>
class Memory {
 public:
  using value_type = T;
  static_assert(std::is_trivially_copyable_v<T>, "elements are bytes for the peers");

  Memory() = default;
  Memory(tbcclComm_t comm, std::size_t size) : size_(size) {
    if (size > SIZE_MAX / sizeof(T)) throw Error(tbcclInvalidArgument, "alloc: too many elements");
    void *data = nullptr;
    check(tbcclCommMemAlloc(comm, &data, size * sizeof(T)));
    data_ = static_cast<T *>(data);
  }
  Memory(Memory &&other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Memory &operator=(Memory &&other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory() { tbcclMemFree(data_); }

  T *data() noexcept { return data_; }
  const T *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  T *begin() noexcept { return data_; }
  T *end() noexcept { return data_ + size_; }
  const T *begin() const noexcept { return data_; }
  const T *end() const noexcept { return data_ + size_; }
  T &operator[](std::size_t index) { return data_[index]; }
  const T &operator[](std::size_t index) const { return data_[index]; }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

/* Memory of the program that is registered with a communicator, which must live longer. */
class Registration {
 public:
  Registration(tbcclComm_t comm, void *data, std::size_t bytes) : comm_(comm) {
    check(tbcclCommRegister(comm, data, bytes, &handle_));
  }
  Registration(Registration &&other) noexcept
      : comm_(other.comm_), handle_(std::exchange(other.handle_, nullptr)) {}
  Registration &operator=(Registration &&other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Registration() {
    if (handle_) tbcclCommDeregister(comm_, handle_);
  }

 private:
  tbcclComm_t comm_;
  void *handle_ = nullptr;
};

/* A communicator, as one of its ranks. It can be moved, and not copied. Destroying it ends it, after its
 * issued calls are done. */
class Communicator {
 public:
  /* Takes over a handle of tbccl.h. */
  explicit Communicator(tbcclComm_t comm) : comm_(comm) {
    try {
      check(tbcclCommUserRank(comm, &rank_));
      check(tbcclCommCount(comm, &size_));
    } catch (...) {
      tbcclCommDestroy(comm);
      throw;
    }
  }
  Communicator(Communicator &&other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)), rank_(other.rank_), size_(other.size_) {}
  Communicator &operator=(Communicator &&other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(rank_, other.rank_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Communicator() {
    if (comm_) tbcclCommDestroy(comm_);
  }

  /* Joins the job of the launcher that has started this process. */
  static Communicator from_env(const Config &config = {}) {
    tbcclConfig_t options = config.get();
    tbcclComm_t comm = nullptr;
    check(tbcclCommInitFromEnv(&comm, &options));
    return Communicator(comm);
  }

  /* Joins `ranks` ranks that all have the same id. */
  static Communicator from_id(const tbcclUniqueId &id, int ranks, int rank, const Config &config = {}) {
    tbcclConfig_t options = config.get();
    tbcclComm_t comm = nullptr;
    check(tbcclCommInitRankConfig(&comm, ranks, id, rank, &options));
    return Communicator(comm);
  }

  /* Makes a communicator whose ranks are threads of this process, each with one of the results. */
  static std::vector<Communicator> local(int ranks) {
    std::vector<tbcclComm_t> handles(ranks > 0 ? static_cast<std::size_t>(ranks) : 0);
    check(tbcclCommInitAll(handles.data(), ranks, nullptr));
    std::vector<Communicator> all;
    all.reserve(handles.size());
    for (tbcclComm_t handle : handles) all.emplace_back(handle);
    return all;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /* The handle, for functions of tbccl.h. */
  tbcclComm_t get() const noexcept { return comm_; }

  /* Waits until all issued calls are done, and closes the communicator. */
  void finalize() { check(tbcclCommFinalize(comm_)); }
  /* Makes calls in progress and all later ones fail here and on the other ranks. From any thread. */
  void abort() { check(tbcclCommAbort(comm_)); }

  /* Makes a communicator of the ranks of each color; none for TBCCL_SPLIT_NOCOLOR. */
  std::optional<Communicator> split(int color, int key = 0) {
    tbcclComm_t made = nullptr;
    check(tbcclCommSplit(comm_, color, key, &made, nullptr));
    if (!made) return std::nullopt;
    return Communicator(made);
  }

  /* Makes a communicator without some ranks, also after this one has failed. */
  Communicator shrink(std::vector<int> excluded, int flags = TBCCL_SHRINK_DEFAULT) {
    tbcclComm_t made = nullptr;
    int count = static_cast<int>(excluded.size());
    check(tbcclCommShrink(comm_, excluded.data(), count, &made, nullptr, flags));
    return Communicator(made);
  }

  /* Makes another handle of this communicator, whose calls have these options. */
  Communicator with_options(const CallOptions &options) {
    tbcclCallOptions_t given = TBCCL_CALL_OPTIONS_INITIALIZER;
    if (options.timeout) given.timeoutMs = options.timeout->count();
    if (!options.algorithm.empty()) given.algSelection = options.algorithm.c_str();
    given.segments = options.segments;
    if (options.reproducible) {
      given.numerics = *options.reproducible ? TBCCL_NUMERICS_REPRODUCIBLE : TBCCL_NUMERICS_FAST;
    }
    tbcclComm_t made = nullptr;
    check(tbcclCommWithOptions(comm_, &given, &made));
    return Communicator(made);
  }

  /* Allocates zeroed memory that calls on this communicator move without copies. */
  template <class T>
  Memory<T> alloc(std::size_t size) {
    return Memory<T>(comm_, size);
  }

  /* Registers memory of the program, so that calls on it make no copies where devices allow that. */
  template <class Buffer>
  [[nodiscard]] Registration register_memory(Buffer &&buffer) {
    auto all = span(buffer);
    return Registration(comm_, all.data(), all.size() * sizeof(*all.data()));
  }

  tbcclStats_t stats() const {
    tbcclStats_t stats = TBCCL_STATS_INITIALIZER;
    check(tbcclCommStats(comm_, &stats));
    return stats;
  }

  /* Reduces over all ranks and stores the result in every rank's recv. In place with one buffer. */
  template <class Send, class Recv>
  void all_reduce(const Send &send, Recv &&recv, Op op) { now(make_all_reduce(send, recv, op)); }
  template <class Send, class Recv>
  [[nodiscard]] Future all_reduce_async(const Send &send, Recv &&recv, Op op) {
    return later(make_all_reduce(send, recv, op));
  }

  template <class Buffer>
  void all_reduce(Buffer &&buffer, Op op) { now(make_all_reduce(buffer, buffer, op)); }
  template <class Buffer>
  [[nodiscard]] Future all_reduce_async(Buffer &&buffer, Op op) {
    return later(make_all_reduce(buffer, buffer, op));
  }

  /* Reduces over all ranks and stores the result in recv of rank root; others may pass an empty recv. */
  template <class Send, class Recv>
  void reduce(const Send &send, Recv &&recv, Op op, int root) {
    now(make_reduce(send, recv, op, root));
  }
  template <class Send, class Recv>
  [[nodiscard]] Future reduce_async(const Send &send, Recv &&recv, Op op, int root) {
    return later(make_reduce(send, recv, op, root));
  }

  /* Copies rank root's buffer to every other rank's. */
  template <class Buffer>
  void broadcast(Buffer &&buffer, int root) { now(make_broadcast(buffer, root)); }
  template <class Buffer>
  [[nodiscard]] Future broadcast_async(Buffer &&buffer, int root) {
    return later(make_broadcast(buffer, root));
  }

  /* Gathers every rank's send, in rank order, in every rank's recv. */
  template <class Send, class Recv>
  void all_gather(const Send &send, Recv &&recv) { now(make_all_gather(send, recv)); }
  template <class Send, class Recv>
  [[nodiscard]] Future all_gather_async(const Send &send, Recv &&recv) {
    return later(make_all_gather(send, recv));
  }

  /* Reduces blocks, one per rank in send, and stores each rank's block in its recv. */
  template <class Send, class Recv>
  void reduce_scatter(const Send &send, Recv &&recv, Op op) {
    now(make_reduce_scatter(send, recv, op));
  }
  template <class Send, class Recv>
  [[nodiscard]] Future reduce_scatter_async(const Send &send, Recv &&recv, Op op) {
    return later(make_reduce_scatter(send, recv, op));
  }

  /* Sends a block of send to each rank, and receives a block of each in recv, in rank order. */
  template <class Send, class Recv>
  void all_to_all(const Send &send, Recv &&recv) { now(make_all_to_all(send, recv)); }
  template <class Send, class Recv>
  [[nodiscard]] Future all_to_all_async(const Send &send, Recv &&recv) {
    return later(make_all_to_all(send, recv));
  }

  /* Gathers every rank's send in recv of rank root; others may pass an empty recv. */
  template <class Send, class Recv>
  void gather(const Send &send, Recv &&recv, int root) { now(make_gather(send, recv, root)); }
  template <class Send, class Recv>
  [[nodiscard]] Future gather_async(const Send &send, Recv &&recv, int root) {
    return later(make_gather(send, recv, root));
  }

  /* Distributes blocks of rank root's send; others may pass an empty send. */
  template <class Send, class Recv>
  void scatter(const Send &send, Recv &&recv, int root) { now(make_scatter(send, recv, root)); }
  template <class Send, class Recv>
  [[nodiscard]] Future scatter_async(const Send &send, Recv &&recv, int root) {
    return later(make_scatter(send, recv, root));
  }

  /* Reduces over the ranks up to and with this one. */
  template <class Send, class Recv>
  void scan(const Send &send, Recv &&recv, Op op) { now(make_scan(send, recv, op)); }
  template <class Send, class Recv>
  [[nodiscard]] Future scan_async(const Send &send, Recv &&recv, Op op) {
    return later(make_scan(send, recv, op));
  }

  /* Reduces over the ranks before this one. Rank 0's recv stays as it is. */
  template <class Send, class Recv>
  void exclusive_scan(const Send &send, Recv &&recv, Op op) {
    now(make_exclusive_scan(send, recv, op));
  }
  template <class Send, class Recv>
  [[nodiscard]] Future exclusive_scan_async(const Send &send, Recv &&recv, Op op) {
    return later(make_exclusive_scan(send, recv, op));
  }

  /* Sends to rank peer, which receives as many elements. */
  template <class Buffer>
  void send(const Buffer &buffer, int peer) { now(make_send(buffer, peer)); }
  template <class Buffer>
  [[nodiscard]] Future send_async(const Buffer &buffer, int peer) {
    return later(make_send(buffer, peer));
  }

  /* Receives from rank peer. */
  template <class Buffer>
  void recv(Buffer &&buffer, int peer) { now(make_recv(buffer, peer)); }
  template <class Buffer>
  [[nodiscard]] Future recv_async(Buffer &&buffer, int peer) {
    return later(make_recv(buffer, peer));
  }

  /* Waits until all ranks have called it. */
  void barrier() { check(tbcclBarrier(comm_, nullptr)); }
  [[nodiscard]] Future barrier_async() {
    return later([comm = comm_](tbcclRequest_t *request) { return tbcclBarrier(comm, request); });
  }

 private:
  template <class Call>
  static void now(Call &&call) {
    check(call(nullptr));
  }

  template <class Call>
  static Future later(Call &&call) {
    tbcclRequest_t request = nullptr;
    check(call(&request));
    return Future(request);
  }

  /* Throws unless a buffer has as many elements as the call needs. */
  static void need(const char *call, const char *buffer, std::size_t has, std::size_t needs) {
    if (has == needs) return;
    throw Error(tbcclInvalidArgument, std::string(call) + ": " + buffer + " has " + std::to_string(has) +
                                          " elements, and the call needs " + std::to_string(needs));
  }

  /* Returns the length of a block of a buffer with one block per rank. */
  std::size_t block(const char *call, const char *buffer, std::size_t has) const {
    std::size_t ranks = static_cast<std::size_t>(size_);
    if (has % ranks == 0) return has / ranks;
    throw Error(tbcclInvalidArgument, std::string(call) + ": " + buffer + " has " + std::to_string(has) +
                                          " elements, which are no blocks for " +
                                          std::to_string(size_) + " ranks");
  }

  template <class Buffer>
  using Element = typename decltype(tbccl::span(std::declval<Buffer &>()))::value_type;

  /* Returns the type of two buffers. */
  template <class Send, class Recv>
  static constexpr tbcclDataType_t type() {
    static_assert(std::is_same_v<Element<Send>, Element<Recv>>, "both buffers have elements of one type");
    return Type<Element<Send>>::value;
  }

  template <class Send, class Recv>
  auto make_all_reduce(Send &send, Recv &recv, Op op) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = from.size();
    need("all_reduce", "recv", to.size(), count);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclAllReduce(from.data(), to.data(), count, type<Send, Recv>(), op, comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_reduce(Send &send, Recv &recv, Op op, int root) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = from.size();
    if (rank_ == root) need("reduce", "recv", to.size(), count);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclReduce(from.data(), to.data(), count, type<Send, Recv>(), op, root, comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_all_gather(Send &send, Recv &recv) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = from.size();
    need("all_gather", "recv", to.size(), count * static_cast<std::size_t>(size_));
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclAllGather(from.data(), to.data(), count, type<Send, Recv>(), comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_reduce_scatter(Send &send, Recv &recv, Op op) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = to.size();
    need("reduce_scatter", "send", from.size(), count * static_cast<std::size_t>(size_));
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclReduceScatter(from.data(), to.data(), count, type<Send, Recv>(), op, comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_all_to_all(Send &send, Recv &recv) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = block("all_to_all", "send", from.size());
    need("all_to_all", "recv", to.size(), from.size());
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclAlltoAll(from.data(), to.data(), count, type<Send, Recv>(), comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_gather(Send &send, Recv &recv, int root) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = from.size();
    if (rank_ == root) need("gather", "recv", to.size(), count * static_cast<std::size_t>(size_));
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclGather(from.data(), to.data(), count, type<Send, Recv>(), root, comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_scatter(Send &send, Recv &recv, int root) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = to.size();
    if (rank_ == root) need("scatter", "send", from.size(), count * static_cast<std::size_t>(size_));
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclScatter(from.data(), to.data(), count, type<Send, Recv>(), root, comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_scan(Send &send, Recv &recv, Op op) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = from.size();
    need("scan", "recv", to.size(), count);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclScan(from.data(), to.data(), count, type<Send, Recv>(), op, comm, request);
    };
  }

  template <class Send, class Recv>
  auto make_exclusive_scan(Send &send, Recv &recv, Op op) const {
    auto from = tbccl::span(send);
    auto to = tbccl::span(recv);
    std::size_t count = from.size();
    need("exclusive_scan", "recv", to.size(), count);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclExclusiveScan(from.data(), to.data(), count, type<Send, Recv>(), op, comm, request);
    };
  }

  template <class Buffer>
  auto make_broadcast(Buffer &buffer, int root) const {
    auto all = tbccl::span(buffer);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclBcast(all.data(), all.size(), type<Buffer, Buffer>(), root, comm, request);
    };
  }

  template <class Buffer>
  auto make_send(Buffer &buffer, int peer) const {
    auto all = tbccl::span(buffer);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclSend(all.data(), all.size(), type<Buffer, Buffer>(), peer, comm, request);
    };
  }

  template <class Buffer>
  auto make_recv(Buffer &buffer, int peer) const {
    auto all = tbccl::span(buffer);
    return [=, comm = comm_](tbcclRequest_t *request) {
      return tbcclRecv(all.data(), all.size(), type<Buffer, Buffer>(), peer, comm, request);
    };
  }

  tbcclComm_t comm_ = nullptr;
  int rank_ = -1;
  int size_ = 0;
};

/* Makes the calls in a function together: they are issued when it has returned, and those without a Future
 * are done when this returns. One thread may call for several ranks. If the function throws, none of its
 * calls is carried out. */
template <class Calls>
void group(Calls &&calls) {
  check(tbcclGroupStart());
  try {
    calls();
  } catch (...) {
    // A refused call ends the group without carrying any call out.
    tbcclBarrier(nullptr, nullptr);
    tbcclGroupEnd();
    throw;
  }
  check(tbcclGroupEnd());
}

/* Makes an id for a new job, with its rendezvous in this process. */
inline tbcclUniqueId unique_id() {
  tbcclUniqueId id;
  check(tbcclGetUniqueId(&id));
  return id;
}

}  // namespace tbccl

#endif /* TBCCL_HPP_ */
