// The functions of libtbccl for MLX's groups. ffi/mlx/table/src/native.rs declares the same for Rust.
//
// A function that can fail returns null, or a message to free by free_message. Groups are numbers of this
// process.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The group of all ranks.
constexpr uint64_t TBCCL_WORLD = 1;

// Version of tbccl that a table is of, and the bytes of the table.
struct tbccl_release {
    char version[24];
    uint64_t bytes;
};

struct tbccl_native_functions {
    tbccl_release release;
    void (*free_message)(char *message);
    // Tells whether the option TBCCL_MLX_NATIVE wants these groups, as 1 or 0.
    char *(*is_wanted)(int *output);
    // Joins the job of the launcher that started this process, unless it has joined it already.
    char *(*join)();
    // Tells the lowest rank that cannot make these groups, or -1 if all ranks can. All ranks call it.
    char *(*first_unable)(int is_able, int *output);
    // Leaves the job, once no rank waits for a call of this one any more.
    void (*leave)();
    int (*rank)(uint64_t group);
    int (*size)(uint64_t group);
    char *(*split)(uint64_t group, int color, int key, uint64_t *output);
    void (*release_group)(uint64_t group);
    // Operations: 0 sums, 1 takes the greatest, 2 the least. Counts are elements of the type, per rank.
    char *(*all_reduce)(uint64_t group, const void *in, void *out, size_t count, int dtype, int op);
    char *(*sum_scatter)(uint64_t group, const void *in, void *out, size_t count, int dtype);
    char *(*all_gather)(uint64_t group, const void *in, void *out, size_t count, int dtype);
    char *(*send)(uint64_t group, const void *in, size_t bytes, int to);
    char *(*recv)(uint64_t group, void *out, size_t bytes, int from);
};

}  // extern "C"
