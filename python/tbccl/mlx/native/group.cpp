// Groups of MLX over libtbccl: a class of MLX's own kind, and the functions by which tbccl.mlx uses it.
//
// tbccl.mlx compiles this file on the user's machine, against the headers of the installed MLX, with the
// version of nanobind that MLX was compiled with: only then does nanobind know MLX's Python types here.
//
// MLX evaluates an operation by queuing a function in a stream, whose thread calls it later. Such a function
// holds a reference to its group, so a group lives until its last queued call, though the program has dropped
// it. An exception in a stream's thread reaches the program where it reads the result.
//
// A program may use a group on several streams, each of which has a thread of its own. All ranks must make
// the collectives of a group in the same order, so a collective waits in its thread until those that the
// program queued before it have ended. Messages have no such order: each is matched with its receive.

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>

#include "core.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/distributed/distributed.h"
#include "mlx/distributed/distributed_impl.h"
#include "mlx/utils.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace {

// Functions of libtbccl; null before load().
const tbccl_native_functions *core = nullptr;

void throw_if_failed(char *message) {
    if (!message) return;
    std::string text(message);
    core->free_message(message);
    throw std::runtime_error(text);
}

enum class Op { sum = 0, max = 1, min = 2 };

// Number of an element type, as libtbccl numbers them.
int number_of(mx::Dtype dtype) {
    switch (dtype.val()) {
        case mx::Dtype::Val::bool_: return 0;
        case mx::Dtype::Val::int8: return 1;
        case mx::Dtype::Val::int16: return 2;
        case mx::Dtype::Val::int32: return 3;
        case mx::Dtype::Val::int64: return 4;
        case mx::Dtype::Val::uint8: return 5;
        case mx::Dtype::Val::uint16: return 6;
        case mx::Dtype::Val::uint32: return 7;
        case mx::Dtype::Val::uint64: return 8;
        case mx::Dtype::Val::float16: return 9;
        case mx::Dtype::Val::bfloat16: return 10;
        case mx::Dtype::Val::float32: return 11;
        case mx::Dtype::Val::float64: return 12;
        case mx::Dtype::Val::complex64: return 13;
    }
    throw std::invalid_argument("[tbccl] unknown element type of MLX");
}

// The order of the collectives of a group: numbers from 0 on, each of which ends once.
class Order {
   public:
    // Held while a number is taken and its call is queued, so that no stream gets a later number first.
    std::mutex queuing;

    // Returns the next number. The caller holds `queuing`.
    uint64_t take() { return taken_++; }

    // Waits until all lower numbers have ended.
    void wait_for(uint64_t number) {
        std::unique_lock lock(mutex_);
        if (due_ == number) return;
        ++waiting_;
        advanced_.wait(lock, [&] { return due_ == number; });
        --waiting_;
    }

    // Ends a number, also one whose turn has not come.
    void end(uint64_t number) {
        std::lock_guard lock(mutex_);
        if (due_ != number) {
            ended_early_.insert(number);
            return;
        }
        do {
            ++due_;
        } while (ended_early_.erase(due_));
        if (waiting_) advanced_.notify_all();
    }

   private:
    uint64_t taken_ = 0;
    std::mutex mutex_;
    std::condition_variable advanced_;
    // The least number that has not ended.
    uint64_t due_ = 0;
    std::set<uint64_t> ended_early_;
    int waiting_ = 0;
};

// A group of libtbccl. The last reference releases it.
struct Handle {
    explicit Handle(uint64_t number) : number(number) {}
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle() { core->release_group(number); }

    const uint64_t number;
    Order order;
};

// A collective's place in the order of its group. It ends with the call, or when MLX drops a queued call.
class Place {
   public:
    // The caller holds `queuing` of the group's order.
    explicit Place(std::shared_ptr<Handle> handle)
        : handle_(std::move(handle)), number_(handle_->order.take()) {}
    Place(const Place &) = delete;
    Place &operator=(const Place &) = delete;
    ~Place() { end(); }

    // Makes the call once its turn has come.
    template <class Call>
    void run(const Call &call) {
        handle_->order.wait_for(number_);
        char *message = call(handle_->number);
        end();
        throw_if_failed(message);
    }

   private:
    void end() {
        if (!has_ended_) handle_->order.end(number_);
        has_ended_ = true;
    }

    std::shared_ptr<Handle> handle_;
    uint64_t number_;
    bool has_ended_ = false;
};

class NativeGroup final : public mx::distributed::detail::GroupImpl {
   public:
    explicit NativeGroup(uint64_t number)
        : handle_(std::make_shared<Handle>(number)), rank_(core->rank(number)), size_(core->size(number)) {}

    // Calls wait for other ranks, so they belong on a thread of the processor.
    mx::Stream communication_stream(mx::StreamOrDevice s) override {
        return mx::to_stream(s, mx::Device::cpu);
    }

    int rank() override { return rank_; }
    int size() override { return size_; }

    std::shared_ptr<GroupImpl> split(int color, int key) override {
        uint64_t number = 0;
        throw_if_failed(core->split(handle_->number, color, key < 0 ? rank_ : key, &number));
        return std::make_shared<NativeGroup>(number);
    }

    void all_sum(const mx::array &input, mx::array &output, mx::Stream stream) override {
        reduce(input, output, stream, Op::sum);
    }
    void all_max(const mx::array &input, mx::array &output, mx::Stream stream) override {
        reduce(input, output, stream, Op::max);
    }
    void all_min(const mx::array &input, mx::array &output, mx::Stream stream) override {
        reduce(input, output, stream, Op::min);
    }

    void sum_scatter(const mx::array &input, mx::array &output, mx::Stream stream) override {
        auto [in, out] = buffers(input, output);
        queue(input, output, stream,
              [in, out, count = output.size(), dtype = number_of(input.dtype())](uint64_t group) {
                  return core->sum_scatter(group, in, out, count, dtype);
              });
    }

    void all_gather(const mx::array &input, mx::array &output, mx::Stream stream) override {
        auto [in, out] = buffers(input, output);
        queue(input, output, stream,
              [in, out, count = input.size(), dtype = number_of(input.dtype())](uint64_t group) {
                  return core->all_gather(group, in, out, count, dtype);
              });
    }

    void send(const mx::array &input, int dst, mx::Stream stream) override {
        const void *in = input.data<char>();
        mx::cpu::get_command_encoder(stream).set_input_array(input);
        dispatch(stream, [in, bytes = input.nbytes(), dst](uint64_t group) {
            return core->send(group, in, bytes, dst);
        });
    }

    void recv(mx::array &output, int src, mx::Stream stream) override {
        void *out = output.data<char>();
        mx::cpu::get_command_encoder(stream).set_output_array(output);
        dispatch(stream, [out, bytes = output.nbytes(), src](uint64_t group) {
            return core->recv(group, out, bytes, src);
        });
    }

   private:
    struct Buffers {
        const void *in;
        void *out;
    };

    static Buffers buffers(const mx::array &input, mx::array &output) {
        return {input.data<char>(), output.data<char>()};
    }

    void reduce(const mx::array &input, mx::array &output, mx::Stream stream, Op op) {
        auto [in, out] = buffers(input, output);
        queue(input, output, stream,
              [in, out, count = input.size(), dtype = number_of(input.dtype()), op](uint64_t group) {
                  return core->all_reduce(group, in, out, count, dtype, static_cast<int>(op));
              });
    }

    // Queues a collective, in the group's order.
    template <class Call>
    void queue(const mx::array &input, mx::array &output, mx::Stream stream, Call call) {
        auto &encoder = mx::cpu::get_command_encoder(stream);
        encoder.set_input_array(input);
        encoder.set_output_array(output);
        std::lock_guard queuing(handle_->order.queuing);
        encoder.dispatch([place = std::make_shared<Place>(handle_), call = std::move(call)] {
            place->run(call);
        });
    }

    // Queues a message, with a reference to the group.
    template <class Call>
    void dispatch(mx::Stream stream, Call call) {
        mx::cpu::get_command_encoder(stream).dispatch(
            [handle = handle_, call = std::move(call)] { throw_if_failed(call(handle->number)); });
    }

    std::shared_ptr<Handle> handle_;
    int rank_, size_;
};

// Finds the functions of a libtbccl of the same release.
void load(const std::string &library, const std::string &version) {
    void *opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!opened) throw std::runtime_error(dlerror());
    using Entry = const tbccl_native_functions *(*)(const void *);
    auto entry = reinterpret_cast<Entry>(dlsym(opened, "tbccl_native_functions"));
    if (!entry) throw std::runtime_error(library + " has no function tbccl_native_functions");
    const tbccl_native_functions *found = entry(nullptr);
    const std::string found_version(found->release.version,
                                    strnlen(found->release.version, sizeof found->release.version));
    if (found_version != version || found->release.bytes != sizeof *found) {
        throw std::runtime_error(
            library + " is of tbccl " + found_version + ", and this package of " + version);
    }
    core = found;
}

mx::distributed::Group world() { return {std::make_shared<NativeGroup>(TBCCL_WORLD)}; }

bool is_native(const mx::distributed::Group &group) {
    return dynamic_cast<const NativeGroup *>(group.raw_group().get()) != nullptr;
}

}  // namespace

NB_MODULE(tbccl_mlx_native, m) {
    m.def("load", &load);
    m.def("world", &world);
    m.def("is_native", &is_native);
}
