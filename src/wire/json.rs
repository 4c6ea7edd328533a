//! Strict JSON.
