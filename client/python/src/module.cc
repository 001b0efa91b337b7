// gradwire._native: the part of the C++ SDK that the Python package uses. Every call that can wait
// releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/error_code.h"
#include "client/python/src/python_hook.h"
#include "client/python/src/session.h"
#include "client/shard_places.h"
#include "gradwire/hooks/registry.h"
#include "proto/tls/self_signed.h"
#include "proto/wire/process_setup.h"

namespace nb = nanobind;

namespace gradwire::python {
namespace {

// Translate turns it into an exception of gradwire._errors.
struct StatusError {
  absl::Status status;
};

void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusError{status};
}

template <class T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// The exception class is chosen in Python, so that code and class are listed in one place.
void Translate(const std::exception_ptr& error, void* /*payload*/) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusError& failed) {
    const nb::object made =
        nb::module_::import_("gradwire._errors")
            .attr("from_status")(
                static_cast<int>(failed.status.code()),
                CodedText(ErrorCode::kPython, std::string(failed.status.message())));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  }
}

using Options = std::map<std::string, OptionValue>;
using Parameter = std::tuple<std::string, std::vector<std::int64_t>, std::string>;

// Makes the hook once and drops it, so that options which its constructor refuses raise here and
// not in the middle of a join.
HookSpec Spec(const std::string& hook, const std::string& wrapper, const Options& options) {
  HookSpec spec{.comm_hook = hook, .comm_wrapper = wrapper, .comm_state_option = options};
  Check(spec.Validate());
  Check(HookRegistry::Global().Make(spec).status());
  return spec;
}

std::unique_ptr<Session> Join(const std::string& address, const std::string& session, int rank,
                              int world_size, const std::vector<Parameter>& parameters,
                              const std::string& hook, const std::string& wrapper,
                              const Options& options, const std::string& tls_ca,
                              const std::string& tls_cert, const std::string& tls_key,
                              const std::string& token_file, const std::string& device,
                              const std::string& node_group, bool keep_gradients,
                              double connect_timeout, double join_timeout, double step_timeout,
                              const nb::object& on_wait) {
  ClientOptions client{.address = address,
                       .session = session,
                       .rank = rank,
                       .world_size = world_size,
                       .tls = {.ca = tls_ca, .cert = tls_cert, .key = tls_key},
                       .token_file = token_file,
                       .parameters = {},
                       .hook = Spec(hook, wrapper, options),
                       .device = Value(ParseDevice(device)),
                       .node_group = node_group,
                       .keep_gradients = keep_gradients,
                       .connect_timeout = absl::Seconds(connect_timeout),
                       .join_timeout = absl::Seconds(join_timeout),
                       .step_timeout = absl::Seconds(step_timeout)};
  for (const auto& [name, shape, dtype] : parameters) {
    client.parameters.push_back({.name = name, .shape = shape, .dtype = Value(ParseDType(dtype))});
  }
  // An exception of the callback, such as KeyboardInterrupt, is raised after the SDK has returned.
  std::exception_ptr raised;
  if (!on_wait.is_none()) {
    client.on_wait = [&on_wait, &raised](const std::string& line) {
      const nb::gil_scoped_acquire lock;
      try {
        on_wait(line);
      } catch (const nb::python_error&) {
        raised = std::current_exception();
      }
    };
  }
  auto joined = [&client] {
    const nb::gil_scoped_release released;
    return Session::Join(client);
  }();
  if (raised != nullptr) std::rethrow_exception(raised);
  return Value(std::move(joined));
}

// A job's certificate has to last longer than the job, and to be valid where a clock is slow.
constexpr absl::Duration kSlowClock = absl::Hours(24);
constexpr absl::Duration kLongestJob = absl::Hours(24 * 730);

std::tuple<std::string, std::string> MakeCertificate(const std::string& host) {
  const absl::Time now = absl::Now();
  tls::OwnCertificate made = Value(tls::MakeSelfSigned(host, now - kSlowClock, now + kLongestJob));
  return {std::move(made.cert), std::move(made.key)};
}

bool TakesSeveralDaemons(const std::string& hook, const std::string& wrapper,
                         const Options& options, const std::string& device) {
  return client::CheckShards(Spec(hook, wrapper, options), Value(ParseDevice(device)), 2).ok();
}

// A void* for memory that Python owns, as torch's data_ptr() gives it.
void* Pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): it comes as one
}

nb::bytes Bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::dict Metrics(Session& session) {
  const ClientMetrics metrics = Value(session.client())->metrics();
  nb::dict out;
  out["steps_applied"] = metrics.steps_applied;
  out["steps_skipped"] = metrics.steps_skipped;
  out["bytes_sent"] = metrics.bytes_sent;
  out["bytes_received"] = metrics.bytes_received;
  out["gradient_bytes"] = metrics.gradient_bytes;
  out["resumes"] = metrics.resumes;
  out["rejoins"] = metrics.rejoins;
  out["steps_reduced_again"] = metrics.steps_reduced_again;
  out["missed_steps"] = metrics.missed_steps;
  out["shared_memory"] = metrics.shared_memory;
  out["unix_socket"] = metrics.unix_socket;
  out["leaf"] = metrics.leaf;
  out["compress_seconds"] = metrics.compress_seconds;
  out["decompress_seconds"] = metrics.decompress_seconds;
  return out;
}

nb::list Report(Session& session) {
  nb::list lines;
  for (const BucketReport& report : Value(session.client())->Report()) {
    nb::dict line;
    line["first_parameter"] = report.first_parameter;
    line["parameters"] = report.parameters;
    line["reductions"] = report.reductions;
    line["gradient_bytes"] = report.gradient_bytes;
    line["sent_bytes"] = report.sent_bytes;
    line["received_bytes"] = report.received_bytes;
    line["compress_seconds"] = report.compress_seconds;
    line["wire_seconds"] = report.wire_seconds;
    line["reduce_seconds"] = report.reduce_seconds;
    line["decompress_seconds"] = report.decompress_seconds;
    line["gradient_norm"] = report.gradient_norm;
    line["residual_norm"] = report.residual_norm;
    line["in_place"] = report.in_place;
    lines.append(line);
  }
  return lines;
}

nb::list Take(Session& session, double seconds) {
  std::vector<Completed> taken;
  {
    const nb::gil_scoped_release released;
    taken = session.completions().Take(seconds);
  }
  nb::list out;
  for (const Completed& one : taken) {
    out.append(nb::make_tuple(one.id, one.code, one.message, one.applied));
  }
  return out;
}

// Runs a call of the SDK without the interpreter's lock.
template <class Call>
auto Unlocked(Call call) {
  const nb::gil_scoped_release released;
  return call();
}

// Unlocked with the session's client. The pointer is released before the GIL is taken again,
// because it may be the last one, and the client's destructor waits for threads that may need the
// GIL.
template <class Call>
auto WithClient(Session& session, Call call) {
  return Unlocked([&call, client = Value(session.client())]() mutable {
    const std::shared_ptr<Client> held = std::move(client);
    return call(*held);
  });
}

// What Client::ShareGradients returned.
struct SharedGradients {
  std::shared_ptr<void> pages;
};

// Keeps a Python object alive, for code that has no interpreter's lock. After the interpreter's end
// nobody can drop it.
std::shared_ptr<void> Held(nb::object object) {
  return {object.release().ptr(), [](void* held) {
            if (Py_IsInitialized() == 0) return;
            const nb::gil_scoped_acquire lock;
            nb::handle(static_cast<PyObject*>(held)).dec_ref();
          }};
}

void BindSteps(nb::class_<Session>& session) {
  session.def_prop_ro("rank", [](Session& self) { return Value(self.client())->rank(); })
      .def_prop_ro("world_size", [](Session& self) { return Value(self.client())->world_size(); })
      .def_prop_ro("step", [](Session& self) { return Value(self.client())->step(); })
      .def(
          "all_reduce",
          [](Session& self, std::uint64_t id, std::uintptr_t data, std::size_t numel,
             const std::string& dtype, const std::vector<std::size_t>& positions,
             std::uintptr_t stream) {
            const DType type = Value(ParseDType(dtype));
            Unlocked([&] {
              self.AllReduce(id, Pointer(data), numel, type, positions, Pointer(stream));
            });
          },
          nb::arg("id"), nb::arg("data"), nb::arg("numel"), nb::arg("dtype"), nb::arg("positions"),
          nb::arg("stream") = 0)
      .def(
          "share_gradients",
          [](Session& self, std::uintptr_t data, std::size_t numel, const std::string& dtype,
             nb::object owner) {
            const TensorView view{Value(ParseDType(dtype)), Pointer(data), numel};
            absl::StatusOr<std::shared_ptr<void>> shared =
                WithClient(self, [&view, held = Held(std::move(owner))](Client& client) mutable {
                  return client.ShareGradients(view, std::move(held));
                });
            if (!shared.ok()) {
              return nb::make_tuple(nb::none(), std::string(shared.status().message()));
            }
            return nb::make_tuple(SharedGradients{*std::move(shared)}, "");
          },
          nb::arg("data"), nb::arg("numel"), nb::arg("dtype"), nb::arg("owner"),
          "As Client::ShareGradients: (SharedGradients, \"\"), or (None, why the memory is not "
          "shared).")
      .def(
          "end_step", [](Session& self, std::uint64_t id) { Unlocked([&] { self.EndStep(id); }); },
          nb::arg("id"))
      .def_prop_ro(
          "membership_change",
          [](Session& self) -> std::optional<std::tuple<std::vector<int>, int, std::vector<int>>> {
            const auto change = Value(self.client())->membership_change();
            if (!change) return std::nullopt;
            return std::tuple(change->newcomers, change->root, change->members);
          })
      .def_prop_ro("members", [](Session& self) { return Value(self.client())->members(); })
      .def_prop_ro("skip_reason", [](Session& self) { return Value(self.client())->skip_reason(); })
      .def(
          "check_parameters",
          [](Session& self, std::uint64_t digest) {
            Check(WithClient(self, [&](Client& client) { return client.CheckParameters(digest); }));
          },
          nb::arg("digest"))
      .def_prop_ro("parameter_drift",
                   [](Session& self) { return Value(self.client())->parameter_drift(); })
      .def(
          "set_draw_plan",
          [](Session& self, const std::vector<std::vector<std::uint32_t>>& buckets) {
            Unlocked([&] { self.SetDrawPlan(buckets); });
          },
          nb::arg("buckets"),
          "As Client::SetDrawPlan. A session that is over tells so in other calls.")
      .def("take", &Take, nb::arg("seconds"),
           "Outcomes as (id, code, message, applied). Empty when time is up or after close.")
      .def_prop_ro("closed", [](Session& self) { return self.completions().closed(); })
      .def(
          "broadcast",
          [](Session& self, int root, std::uintptr_t data, std::size_t bytes) {
            Check(WithClient(self, [&](Client& client) {
              return client.Broadcast(root, Pointer(data), bytes);
            }));
          },
          nb::arg("root"), nb::arg("data"), nb::arg("bytes"))
      .def("barrier", [](Session& self) {
        Check(WithClient(self, [&](Client& client) { return client.Barrier(); }));
      });
}

void BindEnd(nb::class_<Session>& session) {
  session
      .def("leave",
           [](Session& self) {
             Check(WithClient(self, [&](Client& client) { return client.Leave(); }));
           })
      .def(
          "hand_over_and_leave",
          [](Session& self, double seconds) {
            HandOver given = Value(WithClient(self, [&](Client& client) {
              return client.HandOverAndLeave(absl::Seconds(seconds));
            }));
            return std::pair(given.rank, std::move(given.reason));
          },
          nb::arg("seconds"), "As Client::HandOverAndLeave: the rank, or None, and why nobody.");
}

void BindState(nb::class_<Session>& session) {
  session
      .def("export_state",
           [](Session& self) {
             return Bytes(
                 Value(WithClient(self, [&](Client& client) { return client.ExportState(); })));
           })
      .def(
          "import_state",
          [](Session& self, const nb::bytes& state) {
            const std::string text(state.c_str(), state.size());
            Check(WithClient(self, [&](Client& client) { return client.ImportState(text); }));
          },
          nb::arg("state"))
      .def("state_dict",
           [](Session& self) {
             return Bytes(
                 Value(WithClient(self, [&](Client& client) { return client.StateDict(); })));
           })
      .def(
          "load_state_dict",
          [](Session& self, const nb::bytes& state) {
            const std::string text(state.c_str(), state.size());
            Check(WithClient(self, [&](Client& client) { return client.LoadStateDict(text); }));
          },
          nb::arg("state"))
      .def(
          "set_loss_scale",
          [](Session& self, double scale) {
            Check(WithClient(self, [&](Client& client) { return client.SetLossScale(scale); }));
          },
          nb::arg("scale"))
      .def("metrics", &Metrics)
      .def("report", &Report)
      .def("close", [](Session& self) { Unlocked([&] { self.Close(); }); })
      .def("abandon", &Session::Abandon);
}

void Bind(nb::module_& m) {
  nb::register_exception_translator(Translate);
  m.doc() = "Gradwire's C++ SDK.";
  m.attr("__version__") = GRADWIRE_VERSION;

  m.def(
      "check_hook",
      [](const std::string& hook, const std::string& wrapper, const Options& options) {
        Spec(hook, wrapper, options);
      },
      nb::arg("comm_hook"), nb::arg("comm_wrapper"), nb::arg("comm_state_option"),
      "Raises InvalidArgument, with what is allowed, unless this is a hook.");
  m.def(
      "register_hook",
      [](const std::string& name, nb::object make) {
        Check(HookRegistry::Global().Register(name, PythonHookFactory(std::move(make))));
      },
      nb::arg("name"), nb::arg("make"));
  m.def("hook_names", [] { return HookRegistry::Global().Names(); });
  m.def("takes_several_daemons", &TakesSeveralDaemons, nb::arg("comm_hook"),
        nb::arg("comm_wrapper"), nb::arg("comm_state_option"), nb::arg("device"),
        "Whether a session with this hook on this device can have several daemons.");
  m.def(
      "parameter_digest",
      [](const std::vector<std::pair<std::uintptr_t, std::size_t>>& memory) {
        std::vector<std::span<const std::byte>> parameters;
        parameters.reserve(memory.size());
        for (const auto& [address, bytes] : memory) {
          parameters.emplace_back(static_cast<const std::byte*>(Pointer(address)), bytes);
        }
        return Unlocked([&] { return ParameterDigest(parameters); });
      },
      nb::arg("memory"), "As ParameterDigest, of addresses and their bytes.");
  m.def("make_certificate", &MakeCertificate, nb::arg("host"),
        "(certificate, key), PEM: signed by itself, for this IP address or DNS name.");

  m.def("join", &Join, nb::arg("address"), nb::arg("session"), nb::arg("rank"),
        nb::arg("world_size"), nb::arg("parameters"), nb::arg("comm_hook") = "no",
        nb::arg("comm_wrapper") = "no", nb::arg("comm_state_option") = Options{},
        nb::arg("tls_ca") = "", nb::arg("tls_cert") = "", nb::arg("tls_key") = "",
        nb::arg("token_file") = "", nb::arg("device") = "cpu", nb::arg("node_group") = "",
        nb::arg("keep_gradients") = false, nb::arg("connect_timeout") = 10.0,
        nb::arg("join_timeout") = 300.0, nb::arg("step_timeout") = 1800.0,
        nb::arg("on_wait") = nb::none(),
        "Waits. `on_wait` is called with a line that says for what, when that takes long.");

  nb::class_<SharedGradients>(m, "SharedGradients").def("release", [](SharedGradients& self) {
    Unlocked([&] { self.pages.reset(); });
  });
  nb::class_<Session> session(m, "Session");
  BindSteps(session);
  BindEnd(session);
  BindState(session);
}

}  // namespace
}  // namespace gradwire::python

NB_MODULE(_native, m) {
  gradwire::wire::SkipDeadlockDetection();  // no Python program can
  // DistributedDataParallel's reducer and an exception's traceback may hold a session past the
  // interpreter's end, which promises to destroy nothing. Its threads have ended by then all the
  // same: SessionState closes it.
  nb::set_leak_warnings(false);
  gradwire::python::Bind(m);
}
