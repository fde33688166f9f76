// One rank of a job, which uses the library as programs of JACCL do.
//
//     calls MODE [ARGUMENT]
//
// Modes: `refused` (without a job), `launched` (by tbccl run), `jaccl` (by JACCL's variables), `factory DIR`
// and `config DIR` (by variables or a Config; ranks exchange bytes through files in DIR), `held` (leaves as
// the process ends), `fails WORDS` (joining fails, and the message has these words), `survives` (rank 1 of
// two is killed, and rank 0 is told).
//
// Where a launcher has started the rank, all modes but `launched` take the rank from the launcher's variables
// and remove them. Prints "ok" and the rank if all checks pass.

#include <signal.h>
#include <unistd.h>

#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "../../tests/harness/checks.h"

#ifdef JACCL_GROUP_HEADER
// MLX's own declaration of the group, against which ours is compared.
#include JACCL_GROUP_HEADER
namespace jaccl {
using AllGatherFn = std::function<void(const char *, char *, size_t)>;
bool is_available();
std::shared_ptr<Group> init(bool strict = false);
std::shared_ptr<Group> init(bool strict, std::function<AllGatherFn(int, int)> factory);
}  // namespace jaccl
#else
#include "jaccl.h"
#endif

using jaccl::Dtype;
using Group = std::shared_ptr<jaccl::Group>;

#define REFUSED(words, ...) check_refused(__LINE__, [&] { __VA_ARGS__; }, words, "[tbccl] ")

// Floating point numbers of two bytes, by their bits. They hold small integers exactly.
struct Half {
    uint16_t bits;
    explicit Half(int value) : bits(0) {
        if (value == 0) return;
        int exponent = 0;
        const int magnitude = value < 0 ? -value : value;
        while (magnitude >> (exponent + 1)) exponent++;
        bits = uint16_t((value < 0 ? 0x8000 : 0) | (exponent + 15) << 10 |
                        ((magnitude - (1 << exponent)) << 10 >> exponent));
    }
    bool operator==(Half other) const { return bits == other.bits; }
};
struct Brain {
    uint16_t bits;
    explicit Brain(int value) {
        const float number = float(value);
        uint32_t whole;
        std::memcpy(&whole, &number, 4);
        bits = uint16_t(whole >> 16);
    }
    bool operator==(Brain other) const { return bits == other.bits; }
};
template <typename T>
static T made(int value) {
    return T(value);
}
template <>
std::complex<float> made(int value) {
    return {float(value), float(-value)};
}

// Element `at` of a rank: small, and different on every rank.
static int value(size_t at, int of) { return int(at % 7) + 3 * of; }

// Reduces with every operation, out of place and in place, and scatters sums.
template <typename T>
static void reductions(const Group &group, int dtype, size_t count) {
    const bool is_truth = dtype == Dtype::Bool;
    auto number = [&](size_t at, int of) { return is_truth ? int(at % 5 == size_t(of)) : value(at, of); };
    auto expected = [&](size_t at, int op) {
        int result = number(at, 0);
        for (int of = 1; of < size; of++) {
            const int next = number(at, of);
            const bool is_further = (op == 1) == (next > result);
            result = op > 0 ? (is_further ? next : result) : is_truth ? result | next : result + next;
        }
        return made<T>(result);
    };
    std::vector<T> in, out(count, made<T>(0));
    for (size_t at = 0; at < count; at++) in.push_back(made<T>(number(at, rank)));
    auto reduce = [&](int op, const T *from, T *to) {
        const size_t bytes = count * sizeof(T);
        if (op == 0) group->all_sum(from, to, bytes, dtype);
        if (op == 1) group->all_max(from, to, bytes, dtype);
        if (op == 2) group->all_min(from, to, bytes, dtype);
    };
    for (int op = 0; op < 3; op++) {
        // Complex numbers are ordered by their real parts first; those of the samples ascend.
        reduce(op, in.data(), out.data());
        for (size_t at = 0; at < count; at++) EXPECT(out[at] == expected(at, op));
        std::vector<T> both = in;
        reduce(op, both.data(), both.data());
        for (size_t at = 0; at < count; at++) EXPECT(both[at] == expected(at, op));
    }
    std::vector<T> blocks;
    for (int block = 0; block < size; block++) blocks.insert(blocks.end(), in.begin(), in.end());
    std::fill(out.begin(), out.end(), made<T>(0));
    group->sum_scatter(blocks.data(), out.data(), count * sizeof(T), dtype);
    for (size_t at = 0; at < count; at++) EXPECT(out[at] == expected(at, 0));
}

// std::vector<bool> has no elements; a byte of 0 or 1 is one of jaccl's.
struct Truth {
    uint8_t byte;
    explicit Truth(int value) : byte(value != 0) {}
    bool operator==(Truth other) const { return byte == other.byte; }
};

static void all_reductions(const Group &group, size_t count) {
    reductions<Truth>(group, Dtype::Bool, count);
    reductions<int8_t>(group, Dtype::Int8, count);
    reductions<int16_t>(group, Dtype::Int16, count);
    reductions<int32_t>(group, Dtype::Int32, count);
    reductions<int64_t>(group, Dtype::Int64, count);
    reductions<uint8_t>(group, Dtype::UInt8, count);
    reductions<uint16_t>(group, Dtype::UInt16, count);
    reductions<uint32_t>(group, Dtype::UInt32, count);
    reductions<uint64_t>(group, Dtype::UInt64, count);
    reductions<Half>(group, Dtype::Float16, count);
    reductions<Brain>(group, Dtype::BFloat16, count);
    reductions<float>(group, Dtype::Float32, count);
    reductions<double>(group, Dtype::Float64, count);
    reductions<std::complex<float>>(group, Dtype::Complex64, count);
}

static void gathers(const Group &group, size_t bytes) {
    std::vector<uint8_t> in(bytes), out(bytes * size + 1, 0xee);
    for (size_t at = 0; at < bytes; at++) in[at] = uint8_t(value(at, rank));
    group->all_gather(in.data(), out.data(), bytes);
    for (int of = 0; of < size; of++) {
        for (size_t at = 0; at < bytes; at++) EXPECT(out[of * bytes + at] == uint8_t(value(at, of)));
    }
    EXPECT(out[bytes * size] == 0xee);
}

// Both neighbors send first, and receive then.
static void messages(const Group &group, size_t bytes) {
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    std::vector<uint8_t> out(bytes), in(bytes + 1, 0xee);
    for (size_t at = 0; at < bytes; at++) out[at] = uint8_t(value(at, rank));
    group->send(out.data(), bytes, right);
    group->recv(in.data(), bytes, left);
    for (size_t at = 0; at < bytes; at++) EXPECT(in[at] == uint8_t(value(at, left)));
    EXPECT(in[bytes] == 0xee);
}

// Arguments that are refused on this rank alone, after which the group works.
static void refusals(const Group &group) {
    float in = 1, out = 0;
    REFUSED("all_sum: element type 14 is not one of 0..14", group->all_sum(&in, &out, 4, 14));
    REFUSED("all_max: element type -1", group->all_max(&in, &out, 4, -1));
    REFUSED("all_min: 3 bytes are not whole elements of f32", group->all_min(&in, &out, 3, Dtype::Float32));
    REFUSED("sum_scatter: send is null", group->sum_scatter(nullptr, &out, 4, Dtype::Float32));
    REFUSED("all_gather: ", group->all_gather(&in, nullptr, 4));
    REFUSED("send: rank 99 is not one of 0..", group->send(&in, 4, 99));
    REFUSED("recv: rank -1 is not one of 0..", group->recv(&out, 4, -1));
    group->all_sum(&in, &out, 4, Dtype::Float32);
    EXPECT(out == float(size));
}

// A message of another length is refused by its receiver.
static void wrong_lengths(const Group &group) {
    char bytes[8] = {};
    if (rank == 0) group->send(bytes, 3, 1);
    if (rank == 1) REFUSED("recv: rank 0 sent 3 bytes, and rank 1 receives 8", group->recv(bytes, 8, 0));
}

static void every_call(const Group &group) {
    EXPECT(group != nullptr && group->rank() == rank && group->size() == size);
    group->barrier();
    for (size_t count : {size_t(1), size_t(1000), size_t(70000)}) all_reductions(group, count);
    for (size_t bytes : {0, 1, 5000, 300000}) gathers(group, bytes);
    // JACCL's ring sends to neighbors only, and so do these.
    for (size_t bytes : {0, 1, 5000, 3000000}) messages(group, bytes);
    refusals(group);
    wrong_lengths(group);
    // MLX makes calls on the threads of its streams.
    std::thread([&] { group->barrier(); }).join();
}

static void without_a_job() {
    EXPECT(jaccl::is_available());
    EXPECT(jaccl::init() == nullptr && jaccl::init(false) == nullptr);
    REFUSED("JACCL_IBV_DEVICES or MLX_IBV_DEVICES is not set", jaccl::init(true));
    REFUSED("JACCL_COORDINATOR or MLX_JACCL_COORDINATOR is not set", jaccl::init(true));
    auto factory = [](int, int) -> jaccl::AllGatherFn { throw std::logic_error("not called"); };
    EXPECT(jaccl::init(false, factory) == nullptr);
    REFUSED("MLX_IBV_DEVICES is not set", jaccl::init(true, factory));
    setenv("MLX_IBV_DEVICES", "/nowhere/devices.json", 1);
    REFUSED("/nowhere/devices.json: ", jaccl::init(false));
    unsetenv("MLX_IBV_DEVICES");
    setenv("JACCL_RANK", "first", 1);
    REFUSED("is first, which is not a rank", jaccl::init(false));
    unsetenv("JACCL_RANK");
#ifndef JACCL_GROUP_HEADER
    jaccl::DeviceTable pair{{{}, {"a"}}, {{"a"}, {}}};
    EXPECT(jaccl::init(jaccl::Config(), false) == nullptr);
    REFUSED("not complete", jaccl::init(jaccl::Config(), true));
    auto config = jaccl::Config().set_rank(2).set_devices(pair).set_coordinator("h:1");
    EXPECT(config.is_valid_mesh() && config.is_valid_ring() && !config.is_valid());
    EXPECT(config.get_rank() == 2 && config.get_size() == 2 && config.get_coordinator() == "h:1");
    EXPECT(config.set_rank("1").is_valid() && !config.get_prefer_ring());
    EXPECT(config.prefer_ring().get_prefer_ring());
    REFUSED("`h` is not HOST:PORT", jaccl::init(config.set_coordinator(std::string("h")), true));
    EXPECT(!jaccl::Config().set_devices({{{}}}).set_coordinator("h:1").is_valid());
    // A chain of three is neither a mesh nor a ring.
    config.set_devices({{{}, {"a"}, {}}, {{"a"}, {}, {"b"}}, {{}, {"b"}, {}}});
    EXPECT(!config.is_valid_mesh() && !config.is_valid_ring() && jaccl::init(config, false) == nullptr);
    try {
        config.set_devices({{{}, {}}});
        EXPECT(!"refused");
    } catch (const std::invalid_argument &error) {
        EXPECT(std::strstr(error.what(), "row 0 of the devices has 2 cells"));
    }
    // What a function of the program throws passes through.
    config = jaccl::Config().set_devices(pair).set_all_gather([](const char *, char *, size_t) { throw 7; });
    try {
        jaccl::init(config, true);
        EXPECT(!"thrown");
    } catch (int thrown) {
        EXPECT(thrown == 7);
    }
    config.set_all_gather([](const char *, char *to, size_t bytes) { std::memset(to, 1, 2 * bytes); });
    REFUSED("did not return what rank 0 gave", jaccl::init(config, true));
    config.set_rank(1).set_all_gather([](const char *from, char *to, size_t bytes) {
        std::memset(to, 0, bytes);
        std::memcpy(to + bytes, from, bytes);
    });
    REFUSED("did not pass rank 0's id on", jaccl::init(config, true));
#endif
}

// Returns a function that gathers bytes through files in a folder, as a program would by means of its own.
static jaccl::AllGatherFn by_files(const std::string &folder) {
    auto calls = std::make_shared<int>(0);
    return [folder, calls](const char *from, char *to, size_t bytes) {
        const std::string stem = folder + "/" + std::to_string((*calls)++) + ".";
        const std::string own = stem + std::to_string(rank);
        std::ofstream(own + ".new", std::ios::binary).write(from, long(bytes));
        EXPECT(std::rename((own + ".new").c_str(), own.c_str()) == 0);
        for (int of = 0; of < size; of++, to += bytes) {
            for (int tries = 0;; tries++) {
                std::ifstream file(stem + std::to_string(of), std::ios::binary);
                if (file.read(to, long(bytes))) break;
                EXPECT(tries < 20000);
                usleep(1000);
            }
        }
    };
}

// Rank 1 of two dies without a word.
static void one_of_two_survives() {
    rank = std::atoi(std::getenv("MLX_RANK")), size = 2;
    Group group = jaccl::init(true);
    group->barrier();
    if (rank == 1) raise(SIGKILL);
    float in = 1, out = 0;
    REFUSED("all_sum: rank 1 ", group->all_sum(&in, &out, 4, Dtype::Float32));
    REFUSED("rank 1 ", group->barrier());
}

// Takes the rank from the launcher's variables, and gives it to the library as JACCL's programs get it.
static void become_a_rank_of_jaccl() {
    if (const char *text = std::getenv("TBCCL_RANK")) rank = std::atoi(text);
    if (const char *text = std::getenv("TBCCL_SIZE")) size = std::atoi(text);
    for (const char *name : {"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "JOB", "BOOTSTRAP",
                             "SECRET", "SECRET_FILE", "ROOT"}) {
        unsetenv(("TBCCL_" + std::string(name)).c_str());
    }
    const char *form = std::getenv("JACCL_IBV_DEVICES") ? "JACCL_RANK" : "MLX_RANK";
    setenv(form, std::to_string(rank).c_str(), 1);
    // Nodes of a fabric stand for hosts.
    if (const char *node = std::getenv("SOFTRDMA_NODE")) setenv("TBCCL_HOST_ID", node, 1);
    // Rank 0 of some programs listens at all of its addresses.
    if (const char *own = std::getenv("COORDINATOR_OF_RANK_0")) {
        if (rank == 0) setenv("MLX_JACCL_COORDINATOR", own, 1);
    }
}

int main(int argc, char **argv) {
    const std::string mode = argc > 1 ? argv[1] : "", argument = argc > 2 ? argv[2] : "";
    static Group held;
    if (mode == "refused") {
        without_a_job();
    } else if (mode == "survives") {
        one_of_two_survives();
    } else if (mode == "launched") {
        Group group = jaccl::init(true);
        rank = group->rank(), size = group->size();
        every_call(group);
    } else {
        become_a_rank_of_jaccl();
        if (mode == "fails") {
            REFUSED(argument.c_str(), jaccl::init(true));
        } else if (mode == "factory") {
            auto factory = [&](int own, int of) {
                EXPECT(own == rank && of == size);
                return by_files(argument);
            };
            every_call(jaccl::init(true, factory));
        } else if (mode == "held") {
            held = jaccl::init(true);
            held->barrier();
#ifndef JACCL_GROUP_HEADER
        } else if (mode == "config") {
            auto config = jaccl::Config::from_env();
            config.set_rank(rank).set_all_gather(by_files(argument));
            every_call(jaccl::init(config, true));
#endif
        } else {
            EXPECT(mode == "jaccl");
            // A second group of the same ranks, once the first has been dropped.
            for (int turn = 0; turn < 2; turn++) every_call(jaccl::init(true));
        }
    }
    std::printf("ok %d\n", rank);
}
