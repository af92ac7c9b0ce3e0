//! The nouns that all components share; no behaviour beyond their own invariants.

pub mod ids;
pub mod clock;
pub mod config;
pub mod option_scope;
pub mod status;
pub mod key_group;
pub mod stream_element;
pub mod failpoint;
