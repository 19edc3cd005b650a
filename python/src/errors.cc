// dsmoe::Error as Python's exceptions, one class a kind, with the same texts.
#include <filesystem>
#include <string>

#include "base/error.h"
#include "binding.h"
#include "train/run_tokenizer.h"

namespace dsmoe::python {
namespace {

// Owned by the module for as long as the interpreter lives.
struct Classes {
  PyObject* error = nullptr;
  PyObject* of_kind[5] = {};
};
Classes classes;

PyObject* add_class(nb::module_& module, const char* name, const char* doc, PyObject* base,
                    PyObject* builtin) {
  const std::string full = std::string("dsmoe.") + name;
  PyObject* bases = builtin == nullptr ? base : PyTuple_Pack(2, base, builtin);
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases, nullptr);
  if (builtin != nullptr) Py_XDECREF(bases);
  if (made == nullptr) throw nb::python_error();
  module.attr(name) = nb::borrow(made);
  return made;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(classes.of_kind[static_cast<int>(error.kind())], error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string text =
        "cannot examine " + error.path1().string() + ": " + error.code().message();
    PyErr_SetString(classes.of_kind[static_cast<int>(ErrorKind::io)], text.c_str());
  } catch (const train::DataInterrupted&) {
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  classes.error = add_class(module, "Error",
                            "The base of all errors of dsmoe: its text says what was expected, "
                            "what came, and what to do.",
                            PyExc_Exception, nullptr);
  const auto add = [&](ErrorKind kind, const char* name, const char* doc, PyObject* builtin) {
    classes.of_kind[static_cast<int>(kind)] = add_class(module, name, doc, classes.error, builtin);
  };
  add(ErrorKind::usage, "UsageError", "The call is wrong: an argument cannot be.",
      PyExc_ValueError);
  add(ErrorKind::input, "InputError", "A file or a value breaks its format or its limits.",
      PyExc_ValueError);
  add(ErrorKind::io, "IoError", "The operating system refused to open, read, write or rename.",
      PyExc_OSError);
  add(ErrorKind::resource, "ResourceError",
      "Memory, disk or places ran out; the same call may succeed later.", PyExc_RuntimeError);
  add(ErrorKind::internal, "InternalError", "A broken promise inside dsmoe: a bug to report.",
      PyExc_RuntimeError);
  nb::register_exception_translator(translate);
}

}  // namespace dsmoe::python
