// Config: the description of a job, by a program or by environment variables.

#include <cstdlib>
#include <utility>

#include "failure.h"
#include "jaccl.h"

namespace TBCCL_JACCL_NAMESPACE {

namespace {

// Returns the first variable that is set and not empty; null if none is.
const char *variable(std::initializer_list<const char *> names) {
    for (const char *name : names) {
        const char *value = std::getenv(name);
        if (value && *value) return value;
    }
    return nullptr;
}

// Frees a table of devices that the Rust part has made.
struct ReadDevices {
    tbccl_jaccl_devices list{};
    ~ReadDevices() { tbccl_jaccl_free_devices(&list); }
};

}  // namespace

Config::Config() : rank_(0), size_(0), prefer_ring_(false) {}

Config &Config::set_rank(const char *text) {
    if (!text) return *this;
    char *end = nullptr;
    const long rank = std::strtol(text, &end, 10);
    if (end == text || *end || rank < 0 || rank > 65535) {
        throw std::runtime_error("[tbccl] JACCL_RANK or MLX_RANK is " + std::string(text) +
                                 ", which is not a rank: ranks are numbered from 0");
    }
    rank_ = static_cast<int>(rank);
    return *this;
}

Config &Config::set_rank(int rank) {
    rank_ = rank;
    return *this;
}

Config &Config::set_coordinator(const char *address) {
    if (address) coordinator_ = address;
    return *this;
}

Config &Config::set_coordinator(std::string address) {
    coordinator_ = std::move(address);
    return *this;
}

Config &Config::set_devices_from_file(const char *path) {
    if (!path) return *this;
    load_or_throw();
    ReadDevices read;
    throw_if_failed(tbccl_jaccl_read_devices(path, &read.list));
    DeviceTable table(read.list.ranks, {read.list.ranks, std::vector<std::string>()});
    for (size_t at = 0; at < read.list.count; at++) {
        const tbccl_jaccl_cable &cable = read.list.cables[at];
        table[cable.from][cable.to].push_back(cable.device);
    }
    return set_devices(std::move(table));
}

Config &Config::set_devices(DeviceTable devices) {
    for (size_t row = 0; row < devices.size(); row++) {
        if (devices[row].size() != devices.size()) {
            throw std::invalid_argument("[tbccl] row " + std::to_string(row) + " of the devices has " +
                                        std::to_string(devices[row].size()) + " cells, but there are " +
                                        std::to_string(devices.size()) + " rows: give a cell for each rank");
        }
    }
    devices_ = std::move(devices);
    size_ = static_cast<int>(devices_.size());
    return *this;
}

Config &Config::prefer_ring(bool prefer) {
    prefer_ring_ = prefer;
    return *this;
}

Config &Config::set_all_gather(AllGatherFn function) {
    all_gather_ = std::move(function);
    return *this;
}

Config &Config::set_all_gather_factory(std::function<AllGatherFn(int, int)> factory) {
    all_gather_factory_ = std::move(factory);
    return *this;
}

// Every rank has a device to every other one, and none to itself.
bool Config::is_valid_mesh() const {
    for (int from = 0; from < size_; from++) {
        for (int to = 0; to < size_; to++) {
            if (devices_[from][to].empty() != (from == to)) return false;
        }
    }
    return size_ >= 2;
}

// All neighbors of the ring are connected by equally many devices.
bool Config::is_valid_ring() const {
    if (size_ < 2) return false;
    const size_t wires = devices_[0][1].size();
    for (int from = 0; from < size_; from++) {
        const int right = (from + 1) % size_, left = (from + size_ - 1) % size_;
        if (devices_[from][right].size() != wires || devices_[from][left].size() != wires) return false;
    }
    return true;
}

bool Config::is_valid() const {
    const bool ranks_can_meet = !coordinator_.empty() || all_gather_ || all_gather_factory_;
    return ranks_can_meet && rank_ >= 0 && rank_ < size_ && (is_valid_mesh() || is_valid_ring());
}

Config Config::from_env() {
    Config config;
    return config.set_rank(variable({"JACCL_RANK", "MLX_RANK"}))
        .set_devices_from_file(variable({"JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"}))
        .set_coordinator(variable({"JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"}))
        .prefer_ring(std::getenv("JACCL_RING") || std::getenv("MLX_JACCL_RING"));
}

}  // namespace TBCCL_JACCL_NAMESPACE
