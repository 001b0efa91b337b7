// A communication hook written in Python, behind the C++ contract.
//
// The Python side (gradwire/torch/_hooks.py) hands out addresses: of each segment's contribution
// and of the memory for its result. Bytes are copied without the interpreter's lock; it is taken
// for planning, for a round's beginning and for the step's end.
#pragma once

#include <nanobind/nanobind.h>

#include "gradwire/hooks/registry.h"

namespace gradwire::python {

// A factory that calls `make(options)` for a new adapter, a gradwire.torch._hooks.Adapter.
HookFactory PythonHookFactory(nanobind::object make);

}  // namespace gradwire::python
