//! What the engine offers to a plugin: the imports of `wit/plugin.wit`.
//!
//! In a component the calls go to the engine. On other targets, where tests
//! run, they are recorded for [`crate::TestHarness`]. The only module that knows
//! which of the two it is.

#[cfg(target_arch = "wasm32")]
mod component;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod recorded;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod recorded_state;

#[cfg(target_arch = "wasm32")]
pub(crate) use component::*;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use {recorded::*, recorded_state::*};

#[cfg(not(target_arch = "wasm32"))]
use crate::bindings::engine::plugin::logging::Level;
pub(crate) use crate::bindings::engine::plugin::{metrics::Kind, output::Verdict};
