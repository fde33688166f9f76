// The part of JACCL's C++ interface that this library has. Names, signatures, the order of virtual functions
// and the layout of Config are those of MLX's library, so programs compiled against its headers run with this
// one.
//
// The library itself is compiled with another namespace (TBCCL_JACCL_NAMESPACE): the exported names lead to
// its functions, and may not be defined twice.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#ifndef TBCCL_JACCL_NAMESPACE
#define TBCCL_JACCL_NAMESPACE jaccl
#endif

namespace TBCCL_JACCL_NAMESPACE {

// Element types, by the numbers that programs pass.
enum Dtype {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float16,
    BFloat16,
    Float32,
    Float64,
    Complex64,
};

// Ranks that make calls together. Every call blocks, and throws std::runtime_error if it fails.
class Group {
   public:
    virtual ~Group() = default;

    virtual int rank() = 0;
    virtual int size() = 0;

    // Reductions over all ranks, n_bytes in and out. In place if both addresses are equal.
    virtual void all_sum(const void *input, void *output, size_t n_bytes, int dtype) = 0;
    virtual void all_max(const void *input, void *output, size_t n_bytes, int dtype) = 0;
    virtual void all_min(const void *input, void *output, size_t n_bytes, int dtype) = 0;

    // Gathers n_bytes of each rank, in rank order.
    virtual void all_gather(const void *input, void *output, size_t n_bytes) = 0;
    // Sums size() blocks of n_bytes each, and stores the block of this rank.
    virtual void sum_scatter(const void *input, void *output, size_t n_bytes, int dtype) = 0;

    virtual void send(const void *input, size_t n_bytes, int dst) = 0;
    virtual void recv(void *output, size_t n_bytes, int src) = 0;
    virtual void barrier() = 0;
};

// Stores n_bytes of each rank, in rank order, at dst.
using AllGatherFn = std::function<void(const char *src, char *dst, size_t n_bytes)>;

// Names of the devices of each rank that lead to each rank.
using DeviceTable = std::vector<std::vector<std::vector<std::string>>>;

// Description of a job. Programs compiled against JACCL's headers read and copy its members by themselves.
class Config {
   public:
    Config();

    Config &set_rank(const char *text);
    Config &set_rank(int rank);
    Config &set_coordinator(const char *address);
    Config &set_coordinator(std::string address);
    Config &set_devices_from_file(const char *path);
    Config &set_devices(DeviceTable devices);
    Config &prefer_ring(bool prefer = true);
    Config &set_all_gather(AllGatherFn function);
    Config &set_all_gather_factory(std::function<AllGatherFn(int, int)> factory);

    bool is_valid_mesh() const;
    bool is_valid_ring() const;
    bool is_valid() const;

    int get_rank() const { return rank_; }
    int get_size() const { return size_; }
    std::string get_coordinator() const { return coordinator_; }
    bool get_prefer_ring() const { return prefer_ring_; }

    // Reads JACCL_RANK, JACCL_IBV_DEVICES, JACCL_COORDINATOR and JACCL_RING, or MLX's names for them.
    static Config from_env();

    // Joins the job. Null, or an exception if strict, where the description is not complete.
    friend std::shared_ptr<Group> init(const Config &config, bool strict);

   private:
    int rank_;
    int size_;
    std::string coordinator_;
    DeviceTable devices_;
    bool prefer_ring_;
    AllGatherFn all_gather_;
    std::function<AllGatherFn(int, int)> all_gather_factory_;
};

bool is_available();
std::shared_ptr<Group> init(bool strict = false);
std::shared_ptr<Group> init(bool strict, std::function<AllGatherFn(int, int)> factory);
std::shared_ptr<Group> init(const Config &config, bool strict = false);

}  // namespace TBCCL_JACCL_NAMESPACE
