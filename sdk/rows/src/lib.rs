//! What the engine and its plugins agree on about rows: their layout, the hash
//! of keys, type descriptors, and the readers of text formats. Described for
//! other languages in `wit/rows.md`, with vectors in `wit/rows.json`.

pub mod row;
pub mod key_hash;
pub mod descriptor;
pub mod json;
pub mod csv;
pub mod shown_key;
