// Before a backward pass on a CUDA device, autograd asks torch's CUDA hooks whether that device has a context, which
// without a driver is an error. `install` makes them answer no: one entry of their virtual table is replaced.
#include <ATen/detail/CUDAHooksInterface.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

static bool no_context(const void*, c10::DeviceIndex) { return false; }

extern "C" void install() {
  using Method = bool (at::AcceleratorHooksInterface::*)(c10::DeviceIndex) const;
  constexpr std::ptrdiff_t pointer = sizeof(void*), before = 2, entries = 100; // type information comes before
  Method method = &at::AcceleratorHooksInterface::hasPrimaryContext;
  std::ptrdiff_t offset; // Itanium ABI: of the entry in the table, plus 1 because the method is virtual
  std::memcpy(&offset, &method, sizeof offset);
  auto object = reinterpret_cast<void***>(const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks()));
  auto table = static_cast<void**>(std::malloc(pointer * (before + entries)));
  std::memcpy(table, *object - before, pointer * (before + entries));
  table[before + (offset - 1) / pointer] = reinterpret_cast<void*>(&no_context);
  *object = table + before;
}
