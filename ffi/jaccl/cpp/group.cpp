// Groups: joining by a description, and the calls of a group.

#include <cstring>
#include <utility>

#include "failure.h"
#include "jaccl.h"

namespace TBCCL_JACCL_NAMESPACE {

namespace {

// All ranks of a job. The last reference leaves the job.
class World final : public Group {
   public:
    explicit World(tbccl_jaccl_world *core)
        : core_(core), rank_(tbccl_jaccl_rank(core)), size_(tbccl_jaccl_size(core)) {}
    World(const World &) = delete;
    World &operator=(const World &) = delete;
    ~World() override { tbccl_jaccl_leave(core_); }

    int rank() override { return rank_; }
    int size() override { return size_; }

    void all_sum(const void *input, void *output, size_t n_bytes, int dtype) override {
        throw_if_failed(tbccl_jaccl_all_sum(core_, input, output, n_bytes, dtype));
    }
    void all_max(const void *input, void *output, size_t n_bytes, int dtype) override {
        throw_if_failed(tbccl_jaccl_all_max(core_, input, output, n_bytes, dtype));
    }
    void all_min(const void *input, void *output, size_t n_bytes, int dtype) override {
        throw_if_failed(tbccl_jaccl_all_min(core_, input, output, n_bytes, dtype));
    }
    void all_gather(const void *input, void *output, size_t n_bytes) override {
        throw_if_failed(tbccl_jaccl_all_gather(core_, input, output, n_bytes));
    }
    void sum_scatter(const void *input, void *output, size_t n_bytes, int dtype) override {
        throw_if_failed(tbccl_jaccl_sum_scatter(core_, input, output, n_bytes, dtype));
    }
    void send(const void *input, size_t n_bytes, int dst) override {
        throw_if_failed(tbccl_jaccl_send(core_, input, n_bytes, dst));
    }
    void recv(void *output, size_t n_bytes, int src) override {
        throw_if_failed(tbccl_jaccl_recv(core_, output, n_bytes, src));
    }
    void barrier() override { throw_if_failed(tbccl_jaccl_barrier(core_)); }

   private:
    tbccl_jaccl_world *core_;
    int rank_, size_;
};

// Entry of a rank in the exchange of rank 0's id: a message instead of the id if rank 0 could not make one.
struct IdEntry {
    unsigned char id[TBCCL_JACCL_ID_BYTES];
    char failure[TBCCL_JACCL_ID_BYTES * 3];
};

// Gives every rank the id that rank 0 makes, by a function of the program.
void exchange_id(int rank, int size, const AllGatherFn &all_gather, unsigned char *id) {
    IdEntry own{};
    if (rank == 0) {
        if (char *failed = tbccl_jaccl_create_id(own.id)) {
            std::strncpy(own.failure, failed, sizeof own.failure - 1);
            tbccl_jaccl_free_message(failed);
        }
    }
    try {
        std::vector<IdEntry> entries(static_cast<size_t>(size));
        const char *source = reinterpret_cast<const char *>(&own);
        all_gather(source, reinterpret_cast<char *>(entries.data()), sizeof own);
        // The ids of other ranks are checked as they are used.
        if (std::memcmp(&entries[static_cast<size_t>(rank)], &own, sizeof own) != 0) {
            throw std::runtime_error(
                "[tbccl] jaccl::init: the all-gather function of the program did not return what rank " +
                std::to_string(rank) + " gave");
        }
        entries[0].failure[sizeof own.failure - 1] = 0;
        if (*entries[0].failure) throw std::runtime_error(entries[0].failure);
        std::memcpy(id, entries[0].id, TBCCL_JACCL_ID_BYTES);
    } catch (...) {
        if (rank == 0) tbccl_jaccl_discard_id(own.id);
        throw;
    }
}

// Returns the cables of a table. They refer to its names.
std::vector<tbccl_jaccl_cable> cables_of(const DeviceTable &devices) {
    std::vector<tbccl_jaccl_cable> cables;
    for (uint32_t from = 0; from < devices.size(); from++) {
        for (uint32_t to = 0; to < devices[from].size(); to++) {
            for (const std::string &name : devices[from][to]) cables.push_back({from, to, name.c_str()});
        }
    }
    return cables;
}

// Returns the group of a job that `tbccl run` has started.
std::shared_ptr<Group> join_launched() {
    tbccl_jaccl_world *core = nullptr;
    throw_if_failed(tbccl_jaccl_join_launched(&core));
    return core ? std::make_shared<World>(core) : nullptr;
}

// Throws or returns null where the variables describe no job.
std::shared_ptr<Group> not_described(const Config &config, bool strict, bool needs_coordinator) {
    if (!strict) return nullptr;
    std::string missing;
    auto require = [&missing](bool is_missing, const char *what) {
        if (is_missing) missing += (missing.empty() ? "" : ", and ") + std::string(what);
    };
    require(config.get_size() == 0,
            "JACCL_IBV_DEVICES or MLX_IBV_DEVICES is not set (a file with the devices between ranks)");
    require(needs_coordinator && config.get_coordinator().empty(),
            "JACCL_COORDINATOR or MLX_JACCL_COORDINATOR is not set (HOST:PORT of rank 0)");
    if (missing.empty() && config.get_rank() >= config.get_size()) {
        missing = "JACCL_RANK or MLX_RANK is " + std::to_string(config.get_rank()) +
                  ", but the devices are those of " + std::to_string(config.get_size()) + " ranks";
    }
    if (missing.empty()) {
        missing = config.get_size() < 2
                      ? "the file of devices is that of a single rank, which needs no group"
                      : "the devices form neither a mesh, with one to every other rank, nor a ring, with "
                        "equally many to both neighbors";
    }
    throw std::runtime_error("[tbccl] jaccl::init: " + missing +
                             "; start the program by mlx.launch --backend jaccl, or by tbccl run");
}

}  // namespace

bool is_available() { return true; }

std::shared_ptr<Group> init(const Config &config, bool strict) {
    load_or_throw();
    if (!config.is_valid()) {
        if (!strict) return nullptr;
        throw std::runtime_error(
            "[tbccl] jaccl::init: the description is not complete: a rank below the number of ranks, a "
            "coordinator or an all-gather, and devices that form a mesh or a ring");
    }
    const std::vector<tbccl_jaccl_cable> cables = cables_of(config.devices_);
    const bool ring = config.is_valid_ring() && (config.prefer_ring_ || !config.is_valid_mesh());
    const uint32_t ranks = static_cast<uint32_t>(config.size_);
    const tbccl_jaccl_devices devices{ranks, cables.size(), cables.data()};
    const tbccl_jaccl_job job{static_cast<uint32_t>(config.rank_), devices, ring};
    tbccl_jaccl_world *core = nullptr;
    const AllGatherFn all_gather = config.all_gather_factory_
                                       ? config.all_gather_factory_(config.rank_, config.size_)
                                       : config.all_gather_;
    if (all_gather) {
        unsigned char id[TBCCL_JACCL_ID_BYTES];
        exchange_id(config.rank_, config.size_, all_gather, id);
        throw_if_failed(tbccl_jaccl_join_by(&job, id, &core));
    } else {
        throw_if_failed(tbccl_jaccl_join_at(&job, config.coordinator_.c_str(), &core));
    }
    return std::make_shared<World>(core);
}

std::shared_ptr<Group> init(bool strict) {
    load_or_throw();
    if (tbccl_jaccl_is_launched()) {
        std::shared_ptr<Group> group = join_launched();
        if (group || !strict) return group;
        throw std::runtime_error(
            "[tbccl] jaccl::init: tbccl run has started a single rank, which needs no group");
    }
    const Config config = Config::from_env();
    return config.is_valid() ? init(config, strict) : not_described(config, strict, true);
}

std::shared_ptr<Group> init(bool strict, std::function<AllGatherFn(int, int)> factory) {
    load_or_throw();
    Config config = Config::from_env();
    config.set_all_gather_factory(std::move(factory));
    if (config.is_valid()) return init(config, strict);
    return tbccl_jaccl_is_launched() ? init(strict) : not_described(config, strict, false);
}

}  // namespace TBCCL_JACCL_NAMESPACE
