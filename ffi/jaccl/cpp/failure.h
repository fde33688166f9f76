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
