// One rank of a job, which calls every function of the library as MLX does or might do, and provokes every
// failure.
//
//     calls LIBRARY
//
// Opens the library as MLX does. Prints "ok" and its rank if all checks pass.

#include <dlfcn.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../tests/harness/checks.h"

typedef void *Handle;
typedef void(Function)(void *, void *, int *, Handle *);
struct Status {
    int source, tag, error, cancelled;
    size_t bytes;
};

static void *library;

template <typename T>
static T *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        std::fprintf(stderr, "no %s\n", name);
        std::exit(1);
    }
    return reinterpret_cast<T *>(found);
}

#define CALL(name, ...) \
    static auto name = [](auto... arguments) { return find<int(__VA_ARGS__)>("MPI_" #name)(arguments...); }
CALL(Get_library_version, char *, int *);
CALL(Init, int *, char ***);
CALL(Finalize);
CALL(Comm_rank, Handle, int *);
CALL(Comm_size, Handle, int *);
CALL(Comm_split, Handle, int, int, Handle *);
CALL(Comm_free, Handle *);
CALL(Allreduce, const void *, void *, int, Handle, Handle, Handle);
CALL(Allgather, const void *, int, Handle, void *, int, Handle, Handle);
CALL(Send, const void *, int, Handle, int, int, Handle);
CALL(Recv, void *, int, Handle, int, int, Handle, Status *);
CALL(Type_contiguous, int, Handle, Handle *);
CALL(Type_commit, Handle *);
CALL(Op_create, Function *, int, Handle *);

static Handle object(const char *name) { return find<char>(("ompi_mpi_" + std::string(name)).c_str()); }
static void *const IN_PLACE = reinterpret_cast<void *>(1);

#define REFUSED(words, ...) check_refused(__LINE__, [&] { __VA_ARGS__; }, words, "[tbccl] MPI_")

// Operations without an equivalent kernel: one that commutes, and one that does not.
static void product_of_halves(void *in, void *inout, int *count, Handle *) {
    for (int at = 0; at < *count; at++)
        static_cast<uint16_t *>(inout)[at] *= static_cast<uint16_t *>(in)[at];
}
static void first_of_two(void *in, void *inout, int *count, Handle *) {
    std::memcpy(inout, in, *count * sizeof(double));
}
static void largest(void *in, void *inout, int *count, Handle *) {
    typedef std::complex<float> C;
    for (int at = 0; at < *count; at++) {
        C a = static_cast<C *>(inout)[at], b = static_cast<C *>(in)[at];
        bool less = a.real() < b.real() || (a.real() == b.real() && a.imag() < b.imag());
        static_cast<C *>(inout)[at] = less ? b : a;
    }
}

static void sums(Handle world) {
    for (int count : {0, 1, 1000, 1 << 20}) {
        std::vector<float> x(count), y(count);
        for (int at = 0; at < count; at++) x[at] = float(at % 100 + rank);
        Allreduce(x.data(), y.data(), count, object("float"), object("op_sum"), world);
        Allreduce(IN_PLACE, x.data(), count, object("float"), object("op_max"), world);
        for (int at = 0; at < count; at++) {
            EXPECT(y[at] == float(at % 100 * size + size * (size - 1) / 2));
            EXPECT(x[at] == float(at % 100 + size - 1));
        }
    }
    int8_t least = int8_t(-rank);
    Allreduce(IN_PLACE, &least, 1, object("int8_t"), object("op_min"), world);
    EXPECT(least == 1 - size);
    uint8_t truth = rank == 0;
    Allreduce(IN_PLACE, &truth, 1, object("c_bool"), object("op_sum"), world);
    EXPECT(truth == 1);
}

static void operations(Handle world) {
    Handle halves, product, first, most;
    Type_contiguous(2, object("uint8_t"), &halves);
    Type_commit(&halves);
    Op_create(product_of_halves, 1, &product);
    Op_create(first_of_two, 0, &first);
    Op_create(largest, 1, &most);
    // The array is longer than the chunk that the library combines at a time.
    const int count = (6 << 20) / 2;
    std::vector<uint16_t> x(count), y(count);
    for (int at = 0; at < count; at++) x[at] = uint16_t(at % 7 + rank + 1);
    Allreduce(x.data(), y.data(), count, halves, product, world);
    Allreduce(IN_PLACE, x.data(), count, halves, product, world);
    for (int at = 0; at < count; at++) {
        uint16_t expected = 1;
        for (int other = 0; other < size; other++) expected *= uint16_t(at % 7 + other + 1);
        EXPECT(x[at] == expected && y[at] == expected);
    }
    // In rank order, the result of this operation is the contribution of the first rank.
    double own = 10.0 + rank, found = 0;
    Allreduce(&own, &found, 1, object("double"), first, world);
    EXPECT(found == 10.0);
    std::complex<float> z(1.0f, float(rank));
    Allreduce(IN_PLACE, &z, 1, object("c_complex"), most, world);
    EXPECT(z == std::complex<float>(1.0f, float(size - 1)));
}

static void gathers(Handle world) {
    Handle halves;
    Type_contiguous(2, object("uint8_t"), &halves);
    uint16_t own[3] = {uint16_t(rank), uint16_t(rank + 100), 7};
    std::vector<uint16_t> all(3 * size);
    Allgather(own, 3, halves, all.data(), 3, halves, world);
    for (int other = 0; other < size; other++)
        EXPECT(all[3 * other] == other && all[3 * other + 1] == other + 100 && all[3 * other + 2] == 7);
    std::vector<int64_t> places(size, -1);
    places[rank] = rank * rank;
    Allgather(IN_PLACE, 0, nullptr, places.data(), 1, object("int64_t"), world);
    for (int other = 0; other < size; other++) EXPECT(places[other] == other * other);
}

static void groups(Handle world) {
    Handle pair, backwards, none, copy;
    Comm_split(world, rank / 2, rank, &pair);
    Comm_split(pair, 3, -rank, &backwards);
    int own, many;
    Comm_rank(backwards, &own);
    Comm_size(backwards, &many);
    EXPECT(many == std::min(2, size - rank / 2 * 2) && own == many - 1 - rank % 2);
    Comm_split(world, rank == 0 ? -32766 : 0, 0, &none);
    EXPECT((none == nullptr) == (rank == 0));
    copy = pair;
    EXPECT(Comm_free(&pair) == 0 && pair == nullptr);
    // Calls on a freed group may still be queued. They work until 16 others have been freed.
    int pair_size;
    EXPECT(Comm_size(copy, &pair_size) == 0 && pair_size == many);
    for (int freed = 0; freed < 17; freed++) {
        std::vector<int> ranks(pair_size);
        if (freed < 16) {
            Allgather(&rank, 1, object("int32_t"), ranks.data(), 1, object("int32_t"), copy);
            EXPECT(ranks[rank % 2] == rank);
        }
        Handle other;
        Comm_split(backwards, 0, rank, &other);
        EXPECT(Comm_free(&other) == 0);
    }
    REFUSED("not a communicator", Comm_rank(copy, &own));
    Handle again = copy, everything = world;
    EXPECT(Comm_free(&again) != 0 && Comm_free(&everything) != 0);
    Comm_free(&backwards);
    if (none) Comm_free(&none);
}

static void messages(Handle world) {
    Handle backwards;
    Comm_split(world, 0, -rank, &backwards);
    if (rank > 0) {
        int word[2] = {rank, -rank};
        Send(word, 2, object("int32_t"), 0, 5 + rank, world);
        Send(word, 1, object("int32_t"), size - 1, 99, backwards);
    } else {
        // Receives from any rank with any tag. Messages of another group must not match.
        std::vector<bool> seen(size);
        for (int other = 1; other < size; other++) {
            int word[3] = {};
            Status status = {};
            Recv(word, 3, object("int32_t"), -1, -1, world, &status);
            EXPECT(word[0] == status.source && word[1] == -word[0] && status.tag == 5 + word[0]);
            EXPECT(status.bytes == 8 && status.error == 0 && !seen[word[0]]);
            seen[word[0]] = true;
        }
        for (int other = 1; other < size; other++) {
            int word = 0;
            Recv(&word, 1, object("int32_t"), size - 1 - other, 99, backwards, nullptr);
            EXPECT(word == other);
        }
    }
    // All ranks send first, and more than an MPI library usually buffers.
    std::vector<double> sent(3 << 20, rank), found(3 << 20);
    Send(sent.data(), int(sent.size()), object("double"), (rank + 1) % size, 1, world);
    Recv(found.data(), int(found.size()), object("double"), (rank + size - 1) % size, 1, world, nullptr);
    EXPECT(found.front() == (rank + size - 1) % size && found.back() == found.front());
    Comm_free(&backwards);
}

static void refusals(Handle world) {
    float x = 0;
    Handle sum = object("op_sum"), single = object("float"), odd = &x;
    REFUSED("-1 elements", Allreduce(&x, &x, -1, single, sum, world));
    REFUSED("not a type", Allreduce(&x, &x, 1, odd, sum, world));
    REFUSED("not an operation", Allreduce(&x, &x, 1, single, odd, world));
    REFUSED("not a communicator", Allreduce(&x, &x, 1, single, sum, odd));
    REFUSED("not a communicator", Allreduce(&x, &x, 1, single, sum, nullptr));
    REFUSED("null", Allreduce(nullptr, &x, 1, single, sum, world));
    REFUSED("differs from", Allgather(&x, 2, single, &x, 1, single, world));
    REFUSED("is not one of 0..", Send(&x, 1, single, size, 0, world));
    REFUSED("is not one of 0..", Recv(&x, 1, single, -7, 0, world, nullptr));
    REFUSED("tags are not negative", Send(&x, 1, single, 0, -3, world));
    REFUSED("colors are not negative", Comm_split(world, -5, 0, &odd));
    REFUSED("NULL", Comm_rank(world, nullptr));
    REFUSED("NULL", Op_create(nullptr, 1, &odd));
    REFUSED("a type of 0 elements", Type_contiguous(0, single, &odd));
    REFUSED("called before", Init(nullptr, nullptr));
    Handle pair;
    Type_contiguous(2, single, &pair);
    REFUSED("not defined", Allreduce(&x, &x, 1, pair, sum, world));
}

int main(int count, char **arguments) {
    library = dlopen(count > 1 ? arguments[1] : "", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    char version[256];
    int length = 0;
    Get_library_version(version, &length);
    EXPECT(std::string(version, length).find("Open MPI") != std::string::npos);
    EXPECT(std::strncmp(version, "tbccl ", 6) == 0 && std::strlen(version) == size_t(length));
    Handle world = object("comm_world");
    REFUSED("MPI_Init has not been called", Comm_rank(world, &rank));
    Init(nullptr, nullptr);
    EXPECT(find<int()>("tbccl_mpi_is_running")() == 1);
    Comm_rank(world, &rank);
    Comm_size(world, &size);
    sums(world);
    operations(world);
    gathers(world);
    groups(world);
    if (size > 1) messages(world);
    refusals(world);
    EXPECT(Finalize() == 0);
    REFUSED("no MPI call is possible after it", Comm_rank(world, &rank));
    REFUSED("no MPI call is possible after it", Init(nullptr, nullptr));
    EXPECT(Finalize() == 0);
    std::printf("ok %d\n", rank);
    return 0;
}
