// A device of PyTorch whose memory is host memory behind streams that are asynchronous and late.
//
// Each stream is a thread with a queue; it sleeps before each task, for as long as the test says. So work of
// two streams that nothing orders is done in the wrong order. Device memory holds the complement of its
// elements, so that a program that reads it by address gets wrong numbers. Freed memory is overwritten once
// the work issued to its stream is done, as memory is reused by an allocator in the order of a stream.
// Copies, fills and allocations are asynchronous; other operations wait for the current stream and run on the
// CPU. A process may have two devices, each with streams of its own. Nothing here knows tbccl.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/api/include/torch/version.h>
#include <torch/library.h>

#include <malloc.h>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr auto KIND = c10::DeviceType::PrivateUse1;

// Most devices of a process, and the number of devices that torch sees.
constexpr DeviceIndex MOST_DEVICES = 2;
std::atomic<DeviceIndex> devices{1};
// Microseconds that each stream sleeps before each task.
std::atomic<int64_t> common_delay{0};
// Whether memory holds the elements themselves, as that of a device that shares the host's memory.
std::atomic<bool> is_unified{false};

class Worker {
 public:
  Worker() { std::thread([this] { run(); }).detach(); }

  void push(std::function<void()> task) {
    std::lock_guard<std::mutex> guard(lock_);
    tasks_.push_back(std::move(task));
    ++issued_;
    changed_.notify_all();
  }

  void synchronize() {
    std::unique_lock<std::mutex> guard(lock_);
    const auto target = issued_;
    changed_.wait(guard, [&] { return done_ >= target; });
  }

  bool is_idle() {
    std::lock_guard<std::mutex> guard(lock_);
    return done_ == issued_;
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> guard(lock_);
        changed_.wait(guard, [&] { return !tasks_.empty(); });
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      if (const auto delay = common_delay.load()) {
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
      }
      task();
      std::lock_guard<std::mutex> guard(lock_);
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t issued_ = 0, done_ = 0;
};

// Streams live as long as the process: threads may hold their numbers. The default stream of a device has the
// device's number.
std::mutex workers_lock;
auto& workers = *new std::vector<std::unique_ptr<Worker>>();

void make_default_workers() {
  while (workers.size() < static_cast<size_t>(MOST_DEVICES)) workers.push_back(std::make_unique<Worker>());
}

int64_t new_worker() {
  std::lock_guard<std::mutex> guard(workers_lock);
  make_default_workers();
  workers.push_back(std::make_unique<Worker>());
  return static_cast<int64_t>(workers.size()) - 1;
}

Worker& worker(int64_t id) {
  std::lock_guard<std::mutex> guard(workers_lock);
  make_default_workers();
  return *workers.at(id);
}

thread_local DeviceIndex current_device = 0;
thread_local std::array<int64_t, MOST_DEVICES> current_streams{0, 1};

// Returns the calling thread's stream of the device of a tensor.
Worker& worker_of(const at::Tensor& tensor) { return worker(current_streams.at(tensor.device().index())); }

// Waits for the calling thread's streams.
void synchronize_current_streams() {
  for (const auto id : current_streams) worker(id).synchronize();
}

struct Event {
  std::mutex lock;
  std::condition_variable changed;
  uint64_t recorded = 0, done = 0;

  void wait(uint64_t version) {
    std::unique_lock<std::mutex> guard(lock);
    changed.wait(guard, [&] { return done >= version; });
  }
  uint64_t version() {
    std::lock_guard<std::mutex> guard(lock);
    return recorded;
  }
};
using SharedEvent = std::shared_ptr<Event>;

SharedEvent& shared(void* event) { return *static_cast<SharedEvent*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device next) const override {
    const auto before = getDevice();
    setDevice(next);
    return before;
  }
  Device getDevice() const override { return Device(KIND, current_device); }
  void setDevice(Device next) const override { uncheckedSetDevice(next); }
  void uncheckedSetDevice(Device next) const noexcept override { current_device = next.index(); }
  DeviceIndex deviceCount() const noexcept override { return devices; }

  static DeviceIndex index(Device device) { return device.has_index() ? device.index() : current_device; }
  static Stream stream(Device device, int64_t id) {
    return Stream(Stream::UNSAFE, Device(KIND, index(device)), id);
  }
  Stream getStream(Device device) const override { return stream(device, current_streams.at(index(device))); }
  Stream getDefaultStream(Device device) const override { return stream(device, index(device)); }
  Stream getNewStream(Device device, int) const override { return stream(device, new_worker()); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream next) const override {
    auto& current = current_streams.at(next.device_index());
    const auto before = current;
    current = next.id();
    return stream(next.device(), before);
  }
  bool queryStream(const Stream& stream) const override { return worker(stream.id()).is_idle(); }
  void synchronizeStream(const Stream& stream) const override { worker(stream.id()).synchronize(); }
  void synchronizeDevice(DeviceIndex) const override {
    size_t count;
    {
      std::lock_guard<std::mutex> guard(workers_lock);
      count = workers.size();
    }
    for (size_t id = 0; id < count; ++id) worker(static_cast<int64_t>(id)).synchronize();
  }

  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new SharedEvent(std::make_shared<Event>());
    auto state = shared(*event);
    uint64_t version;
    {
      std::lock_guard<std::mutex> guard(state->lock);
      version = ++state->recorded;
    }
    worker(stream.id()).push([state, version] {
      std::lock_guard<std::mutex> guard(state->lock);
      state->done = std::max(state->done, version);
      state->changed.notify_all();
    });
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    auto state = shared(event);
    worker(stream.id()).push([state, version = state->version()] { state->wait(version); });
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    std::lock_guard<std::mutex> guard(shared(event)->lock);
    return shared(event)->done == shared(event)->recorded;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) shared(event)->wait(shared(event)->version());
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<SharedEvent*>(event);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Memory.

// Whether the buffers of the stand-in for the Objective-C runtime are private to the device.
std::atomic<bool> is_private{false};
// Host addresses that it has told.
std::atomic<int64_t> told_addresses{0};

struct Block {
  void* address;
  size_t length;
  int64_t stream;
};

void free_block(void* context) {
  auto block = *static_cast<Block*>(context);
  delete static_cast<Block*>(context);
  worker(block.stream).push([block] {
    std::memset(block.address, 0xdd, block.length);
    std::free(block.address);
  });
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t length) override {
    void* address = std::malloc(length + 1);
    auto* block = new Block{address, length, current_streams.at(current_device)};
    return {address, block, &free_block, Device(KIND, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t length) const override { std::memcpy(to, from, length); }
};
DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(KIND, &device_allocator);

// Pinned host memory by begin: only copies from and to it are asynchronous.
std::mutex pinned_lock;
auto& pinned = *new std::map<uintptr_t, size_t>();

void free_pinned(void* address) {
  std::lock_guard<std::mutex> guard(pinned_lock);
  const auto found = pinned.find(reinterpret_cast<uintptr_t>(address));
  std::memset(address, 0xdd, found->second);
  pinned.erase(found);
  std::free(address);
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> guard(pinned_lock);
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = pinned.upper_bound(at);
  if (next == pinned.begin()) return false;
  --next;
  return at < next->first + next->second;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t length) override {
    void* address = std::malloc(length + 1);
    std::lock_guard<std::mutex> guard(pinned_lock);
    pinned[reinterpret_cast<uintptr_t>(address)] = length + 1;
    return {address, address, &free_pinned, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t length) const override { std::memcpy(to, from, length); }
};
PinnedAllocator pinned_allocator;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return devices; }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex next) const override { current_device = next; }
  DeviceIndex exchangeDevice(DeviceIndex next) const override {
    const auto before = current_device;
    if (next >= 0) current_device = next;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex next) const override { return exchangeDevice(next); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t length) const override {
    const c10::DeviceGuard guard(storage.device());
    auto memory = device_allocator.allocate(length);
    const auto kept = std::min(length, storage.nbytes());
    synchronize_current_streams();
    std::memcpy(memory.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(length);
  }
};

// Copies.

struct Layout {
  std::vector<int64_t> sizes, from_strides, to_strides;
  size_t item;
};

void copy_strided(char* to, const char* from, const Layout& layout, size_t dimension, bool flips) {
  if (dimension == layout.sizes.size()) {
    for (size_t at = 0; at < layout.item; ++at) to[at] = flips ? static_cast<char>(~from[at]) : from[at];
    return;
  }
  const auto item = static_cast<int64_t>(layout.item);
  const auto size = layout.sizes[dimension];
  const auto from_step = layout.from_strides[dimension] * item, to_step = layout.to_strides[dimension] * item;
  if (dimension + 1 == layout.sizes.size() && from_step == item && to_step == item) {
    const auto length = static_cast<size_t>(size * item);
    if (!flips) {
      std::memcpy(to, from, length);
      return;
    }
    for (size_t at = 0; at < length; ++at) to[at] = static_cast<char>(~from[at]);
    return;
  }
  for (int64_t index = 0; index < size; ++index) {
    copy_strided(to + index * to_step, from + index * from_step, layout, dimension + 1, flips);
  }
}

// Returns the tensor of a device among two; there is one in each copy.
const at::Tensor& on_device(const at::Tensor& one, const at::Tensor& other) {
  return one.is_cpu() ? other : one;
}

// Issues a copy between tensors of one type and shape to the current stream of their device.
void issue_copy(const at::Tensor& from, const at::Tensor& to) {
  Layout layout{from.sizes().vec(), from.strides().vec(), to.strides().vec(), from.element_size()};
  const bool is_between = !from.is_cpu() && !to.is_cpu() && from.device() != to.device();
  TORCH_CHECK(!is_between, "tensors are not copied between devices");
  const bool flips = !is_unified && from.device() != to.device();
  auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  if (from.numel() == 0) return;
  worker_of(on_device(from, to)).push([=] { copy_strided(target, source, layout, 0, flips); });
}

// Returns the view whose elements are those in memory: without the marks of `conj` and `_neg_view`.
at::Tensor unmarked(const at::Tensor& tensor) {
  auto plain = tensor.is_conj() ? tensor.conj() : tensor;
  return plain.is_neg() ? at::_neg_view(plain) : plain;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  auto from = self.expand(to.sizes());
  if (from.is_conj() != to.is_conj() || from.is_neg() != to.is_neg()) {
    auto host = unmarked(from).to(at::kCPU);
    if (from.is_conj() != to.is_conj()) host = host.conj_physical();
    if (from.is_neg() != to.is_neg()) host = host.neg();
    return copy_from(host, unmarked(to), false);
  }
  from = unmarked(from);
  if (from.scalar_type() != to.scalar_type()) from = from.to(at::kCPU).to(to.scalar_type());
  issue_copy(from, unmarked(to));
  const auto& host = from.is_cpu() ? from : to;
  const bool is_async = host.is_cpu() ? non_blocking && is_pinned(host.const_data_ptr()) : true;
  if (!is_async) worker_of(on_device(from, to)).synchronize();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) at::native::resize_(to, self.sizes());
  return copy_from(self, to, false);
}

Device device_or_current(std::optional<Device> device) {
  return Device(KIND, Guard::index(device.value_or(Device(KIND))));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> begin;
  if (offset) begin = offset->expect_int();
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), begin);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  return at::native::set_storage_meta__symint(self, storage, offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.element_size());
  return at::native::set_storage_meta__symint(self, storage, 0, {c10::SymInt(count)}, {c10::SymInt(1)});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& other) {
  return at::native::set_tensor_(self, other);
}

at::Scalar local_scalar(const at::Tensor& self) { return at::_local_scalar_dense(self.to(at::kCPU)); }

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  auto host = at::empty({}, self.options().device(at::kCPU)).fill_(value).expand(self.sizes());
  issue_copy(host, self);
  worker_of(self).push([host] {});
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

void record_stream(at::Tensor&, Stream) {}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  synchronize_current_streams();
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("alias", TORCH_FN(at::native::alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", resize);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("record_stream", record_stream);
}

// Operators without a derivative, such as those of FSDP2, run on tensors that want gradients. Later versions
// of torch have this fallback.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 10
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
#endif

// Copies handle marked views themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// The test's controls.

void set_devices(int64_t count) {
  TORCH_CHECK(count >= 1 && count <= MOST_DEVICES, "there can't be ", count, " devices");
  devices = static_cast<DeviceIndex>(count);
}
int64_t device_count() { return devices; }
int64_t get_device() { return current_device; }
void set_device(int64_t index) { current_device = static_cast<DeviceIndex>(index); }
void set_delay(int64_t microseconds) { common_delay = microseconds; }
void set_unified(bool unified) { is_unified = unified; }
// Waits for all streams. `torch.accelerator.synchronize` does nothing in torch 2.11, which takes the device for
// one that is not initialized.
void synchronize() { Guard().synchronizeDevice(0); }

// A host tensor of the same memory, as `torch.mps._host_alias_storage` gives for unified memory.
at::Tensor host_alias(const at::Tensor& bytes) {
  return at::from_blob(bytes.mutable_data_ptr(), bytes.sizes(), [bytes](void*) {},
                       at::TensorOptions().dtype(bytes.scalar_type()));
}

void set_private(bool on) { is_private = on; }
int64_t count_told_addresses() { return told_addresses; }

TORCH_LIBRARY(standin, m) {
  m.def("set_private(bool on) -> ()", set_private);
  m.def("count_told_addresses() -> int", count_told_addresses);
  m.def("set_devices(int count) -> ()", set_devices);
  m.def("device_count() -> int", device_count);
  m.def("get_device() -> int", get_device);
  m.def("set_device(int index) -> ()", set_device);
  m.def("set_delay(int microseconds) -> ()", set_delay);
  m.def("set_unified(bool unified) -> ()", set_unified);
  m.def("synchronize() -> ()", synchronize);
  m.def("host_alias(Tensor bytes) -> Tensor", host_alias);
}

const auto registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

// A stand-in for the Objective-C runtime, with the functions and the messages by which the host finds the
// memory of `mps`. A device's memory is the buffer, and what it contains.

extern "C" const char* sel_registerName(const char* name) {
  static const std::array<const char*, 3> known{"storageMode", "length", "contents"};
  for (const char* each : known) {
    if (std::strcmp(each, name) == 0) return each;
  }
  std::abort();
}

extern "C" uintptr_t objc_msgSend(void* buffer, const char* selector) {
  if (std::strcmp(selector, "storageMode") == 0) return is_private ? 2 : 0;
  if (std::strcmp(selector, "length") == 0) return malloc_usable_size(buffer);
  ++told_addresses;
  return reinterpret_cast<uintptr_t>(buffer);
}
