// The functions of the Rust part, in libtbccl. ffi/mlx/src/jaccl defines them.
//
// A function that can fail returns null, or a message to free by tbccl_jaccl_free_message. All but the first
// may be called only after it has returned null.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A joined job. Never freed: calls may still be in progress when the group is dropped.
struct tbccl_jaccl_world;

// A device of one rank that leads to another one.
struct tbccl_jaccl_cable {
    uint32_t from, to;
    const char *device;
};

// Devices between ranks.
struct tbccl_jaccl_devices {
    uint32_t ranks;
    size_t count;
    const tbccl_jaccl_cable *cables;
};

// A rank of a job, as its program describes it.
struct tbccl_jaccl_job {
    uint32_t rank;
    tbccl_jaccl_devices devices;
    // Whether only the devices between neighbors of the ring are used.
    bool ring;
};

constexpr size_t TBCCL_JACCL_ID_BYTES = 128;

// Opens libtbccl. Returns null, or the reason why there is none, which lives as long as the process.
const char *tbccl_jaccl_load();

void tbccl_jaccl_free_message(char *message);

// Reads a file with devices. The result is to be freed by tbccl_jaccl_free_devices.
char *tbccl_jaccl_read_devices(const char *path, tbccl_jaccl_devices *devices);
void tbccl_jaccl_free_devices(tbccl_jaccl_devices *devices);

// Whether `tbccl run` started this process.
bool tbccl_jaccl_is_launched();
char *tbccl_jaccl_join_launched(tbccl_jaccl_world **world);
char *tbccl_jaccl_join_at(const tbccl_jaccl_job *job, const char *coordinator, tbccl_jaccl_world **world);
char *tbccl_jaccl_create_id(unsigned char *id);
void tbccl_jaccl_discard_id(const unsigned char *id);
char *tbccl_jaccl_join_by(const tbccl_jaccl_job *job, const unsigned char *id, tbccl_jaccl_world **world);
// Leaves the job, once no rank waits for a call of this one any more.
void tbccl_jaccl_leave(tbccl_jaccl_world *world);

int tbccl_jaccl_rank(const tbccl_jaccl_world *world);
int tbccl_jaccl_size(const tbccl_jaccl_world *world);

char *tbccl_jaccl_all_sum(tbccl_jaccl_world *, const void *input, void *output, size_t bytes, int dtype);
char *tbccl_jaccl_all_max(tbccl_jaccl_world *, const void *input, void *output, size_t bytes, int dtype);
char *tbccl_jaccl_all_min(tbccl_jaccl_world *, const void *input, void *output, size_t bytes, int dtype);
char *tbccl_jaccl_sum_scatter(tbccl_jaccl_world *, const void *input, void *output, size_t bytes, int dtype);
char *tbccl_jaccl_all_gather(tbccl_jaccl_world *, const void *input, void *output, size_t bytes);
char *tbccl_jaccl_send(tbccl_jaccl_world *, const void *input, size_t bytes, int dst);
char *tbccl_jaccl_recv(tbccl_jaccl_world *, void *output, size_t bytes, int src);
char *tbccl_jaccl_barrier(tbccl_jaccl_world *);

}  // extern "C"
