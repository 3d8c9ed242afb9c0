// A fake libcuda.so.1, named so: the driver functions that k3gate calls, over host memory and the wall clock,
// so that NVIDIA's own bindings can be driven without a GPU. A stream is a queue that runs when somebody
// looks at it.
#include <dlfcn.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace {

enum { kOk = 0, kInvalid = 1, kMemory = 2, kNoDevice = 100, kNotFound = 500, kNotReady = 600 };

using Work = std::function<bool()>;  // false: it cannot be done yet

struct Stream {
  std::deque<Work> queue;
};
struct Event {
  bool passed = false;
  double seconds = 0;
};

std::set<Stream*>& streams() {
  static std::set<Stream*> all;
  return all;
}
std::map<uint64_t, size_t>& locked() {
  static std::map<uint64_t, size_t> all;
  return all;
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Streams take turns, as they do where two engines copy.
void run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream* stream : streams()) {
      if (stream->queue.empty() || !stream->queue.front()()) continue;
      stream->queue.pop_front();
      moved = true;
    }
  }
}

int queued(void* stream, Work work) {
  static_cast<Stream*>(stream)->queue.push_back(std::move(work));
  return kOk;
}

int copied(void* to, const void* from, size_t size, void* stream) {
  return queued(stream, [=] {
    std::memcpy(to, from, size);
    return true;
  });
}

void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

extern "C" {

int cuInit(unsigned) { return kOk; }
int cuDriverGetVersion(int* version) { return *version = 13000, kOk; }
int cuDeviceGetByPCIBusId(int* device, const char* name) {
  const char* here = std::getenv("FAKE_LIBCUDA_GPU");
  *device = 0;
  return here != nullptr && std::strcmp(here, name) == 0 ? kOk : kNoDevice;
}
int cuDeviceGetAttribute(int* value, int, int) { return *value = 0, kOk; }
int cuDeviceCanAccessPeer(int* can, int, int) { return *can = 0, kOk; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = at(0xC0), kOk; }
int cuDevicePrimaryCtxRelease_v2(int) { return locked().empty() ? kOk : kInvalid; }
int cuCtxSetCurrent(void* context) { return context == at(0xC0) ? kOk : kInvalid; }
int cuCtxSynchronize() { return run(), kOk; }
int cuCtxEnablePeerAccess(void*, unsigned) { return kOk; }
int cuMemAlloc_v2(uint64_t* memory, size_t size) {
  *memory = reinterpret_cast<uint64_t>(std::malloc(size));
  return *memory != 0 ? kOk : kMemory;
}
int cuMemFree_v2(uint64_t memory) { return std::free(at(memory)), kOk; }
int cuMemsetD8_v2(uint64_t memory, unsigned char byte, size_t size) {
  return std::memset(at(memory), byte, size), kOk;
}
int cuMemHostAlloc(void** memory, size_t size, unsigned) { return *memory = std::calloc(1, size), kOk; }
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) {
  return *device = reinterpret_cast<uint64_t>(host), kOk;
}
int cuMemHostRegister_v2(void* host, size_t size, unsigned) {
  const char* most = std::getenv("FAKE_LIBCUDA_LOCKS");
  if (most != nullptr && size > std::strtoull(most, nullptr, 10)) return kMemory;
  return locked()[reinterpret_cast<uint64_t>(host)] = size, kOk;
}
int cuMemHostUnregister(void* host) {
  return locked().erase(reinterpret_cast<uint64_t>(host)) == 1 ? kOk : kInvalid;
}
int cuStreamCreate(void** stream, unsigned) {
  auto* made = new Stream;
  streams().insert(made);
  return *stream = made, kOk;
}
int cuStreamSynchronize(void* stream) {
  while (!static_cast<Stream*>(stream)->queue.empty()) run();
  return kOk;
}
int cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags) {
  if (flags != 0) return kInvalid;
  return queued(stream, [=] {
    return static_cast<int32_t>(*static_cast<volatile uint32_t*>(at(address)) - value) >= 0;
  });
}
int cuEventCreate(void** event, unsigned) { return *event = new Event, kOk; }
int cuEventRecord(void* event, void* stream) {
  auto* one = static_cast<Event*>(event);
  one->passed = false;
  return queued(stream, [=] {
    one->passed = true;
    one->seconds = now();
    return true;
  });
}
int cuEventQuery(void* event) { return run(), static_cast<Event*>(event)->passed ? kOk : kNotReady; }
int cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  *milliseconds =
      static_cast<float>((static_cast<Event*>(end)->seconds - static_cast<Event*>(start)->seconds) * 1e3);
  return kOk;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void* stream) {
  return copied(at(to), from, size, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void* stream) {
  return copied(to, at(from), size, stream);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void* stream) {
  return copied(at(to), at(from), size, stream);
}
int cuMemcpyPeerAsync(uint64_t to, void*, uint64_t from, void*, size_t size, void* stream) {
  return copied(at(to), at(from), size, stream);
}

// The bindings ask for every function by its plain name, and get the newest of ours.
int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, void* found) {
  *function = nullptr;
  const char* lacking = std::getenv("FAKE_LIBCUDA_LACKS");
  for (const char* end : {"_v2", ""}) {
    if (lacking != nullptr && std::strcmp(lacking, name) == 0) break;
    *function = dlsym(RTLD_DEFAULT, (std::string(name) + end).c_str());
    if (*function == nullptr) {
      void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
      if (self != nullptr) *function = dlsym(self, (std::string(name) + end).c_str());
    }
    if (*function != nullptr) break;
  }
  if (found != nullptr) *static_cast<int*>(found) = *function != nullptr ? 0 : 1;
  return *function != nullptr ? kOk : kNotFound;
}
int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

}  // extern "C"
