// What a build without CUDA has in place of this folder: no devices, no backends.
#include "normgrad/cuda.hpp"
#include "ops/backend.hpp"

namespace normgrad::cuda {
namespace {

Status absent() { return {Code::kUnsupportedDevice, "device: cuda is not in this build"}; }

}  // namespace

std::span<const Backend> backends() { return {}; }

int device_count() { return 0; }
Status set_device(int) { return absent(); }
Status get_device(int&) { return absent(); }
Status synchronize() { return absent(); }
Status describe(int, DeviceInfo&) { return absent(); }

Status allocate(size_t, void*&) { return absent(); }
Status allocate(size_t, void*, void*&) { return absent(); }
Status allocate_host(size_t, void*&) { return absent(); }
Status release(void*) { return absent(); }
Status release(void*, void*) { return absent(); }
Status release_host(void*) { return absent(); }
Status copy(void*, const void*, size_t) { return absent(); }
Status copy(void*, const void*, size_t, void*) { return absent(); }
Status fill(void*, int, size_t) { return absent(); }
Status fill(void*, int, size_t, void*) { return absent(); }

Status create_stream(void*&) { return absent(); }
Status destroy_stream(void*) { return absent(); }
Status synchronize_stream(void*) { return absent(); }
Status query_stream(void*, bool&) { return absent(); }
Status wait_event(void*, void*) { return absent(); }

Status create_event(const EventOptions&, void*&) { return absent(); }
Status destroy_event(void*) { return absent(); }
Status record_event(void*, void*) { return absent(); }
Status query_event(void*, bool&) { return absent(); }
Status synchronize_event(void*) { return absent(); }
Status elapsed_time(void*, void*, float&) { return absent(); }

Status begin_capture(void*, CaptureMode) { return absent(); }
Status end_capture(void*, void*&) { return absent(); }
Status instantiate(void*, void*&) { return absent(); }
Status launch(void*, void*) { return absent(); }
Status destroy_graph(void*) { return absent(); }
Status destroy_executable(void*) { return absent(); }

}  // namespace normgrad::cuda
