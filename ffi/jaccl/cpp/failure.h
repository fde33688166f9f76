// Failures of the Rust part as exceptions.
#pragma once

#include <stdexcept>
#include <string>

#include "core.h"

// Throws the message of a failure, if there is one.
inline void throw_if_failed(char *message) {
    if (!message) return;
    std::string text = message;
    tbccl_jaccl_free_message(message);
    throw std::runtime_error(text);
}

// Opens libtbccl, or throws. Comes before all other functions of the Rust part.
inline void load_or_throw() {
    if (const char *why = tbccl_jaccl_load()) throw std::runtime_error(why);
}
