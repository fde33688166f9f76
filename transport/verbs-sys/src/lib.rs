//! The verbs ABI as plain data.
