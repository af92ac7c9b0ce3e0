//! What a test can see of keyed state and timers.

use std::fmt::Write as _;

use super::TestHarness;
use crate::{
    Error, Result,
    bindings::engine::plugin::graph::{StateDeclaration, StreamNode},
    host::{self, Kept},
    record::{Key, Owned, Reader, TypeDescriptor, descriptor_of, show},
    segment::Segment,
    state::window_of,
};

impl TestHarness {
    /// The value that a state holds for a key. `operator` is the operator's name or uid. States of
    /// the kinds value, reducing and aggregating (then it is the accumulator) have values.
    ///
    /// # Errors
    /// Returns an error if there is no such operator or state, or it has other types.
    pub fn value_state<K: Key + ?Sized, V: Owned>(
        &mut self,
        operator: &str,
        state: &str,
        key: K::Ref<'_>,
    ) -> Result<Option<V>> {
        let (kept, declaration) = self.kept::<K, V>(operator, state, key)?;
        match kept {
            Some(Kept::Bytes(bytes)) => Ok(Some(decode_value(&bytes, &declaration)?)),
            Some(Kept::Map(_)) => Err(Error::new(format!("state \"{state}\" is a map"))),
            None => Ok(None),
        }
    }

    /// The elements that a list state holds for a key; as [`TestHarness::value_state`].
    ///
    /// # Errors
    /// As [`TestHarness::value_state`].
    pub fn list_state<K: Key + ?Sized, V: Owned>(
        &mut self,
        operator: &str,
        state: &str,
        key: K::Ref<'_>,
    ) -> Result<Vec<V>> {
        let (kept, declaration) = self.kept::<K, V>(operator, state, key)?;
        match kept {
            Some(Kept::Bytes(bytes)) => {
                elements(&bytes).into_iter().map(|element| decode_value(element, &declaration)).collect()
            }
            Some(Kept::Map(_)) => Err(Error::new(format!("state \"{state}\" is a map"))),
            None => Ok(Vec::new()),
        }
    }

    /// The pairs that a map state holds for a key, in the order of the encoded keys of the map; as
    /// [`TestHarness::value_state`].
    ///
    /// # Errors
    /// As [`TestHarness::value_state`].
    pub fn map_state<K: Key + ?Sized, M: Owned, V: Owned>(
        &mut self,
        operator: &str,
        state: &str,
        key: K::Ref<'_>,
    ) -> Result<Vec<(M, V)>> {
        let (kept, declaration) = self.kept::<K, V>(operator, state, key)?;
        match kept {
            Some(Kept::Map(pairs)) => pairs
                .iter()
                .map(|(key, value)| Ok((M::decode(key, |key| key)?, decode_value(value, &declaration)?)))
                .collect(),
            Some(Kept::Bytes(_)) => Err(Error::new(format!("state \"{state}\" is no map"))),
            None => Ok(Vec::new()),
        }
    }

    /// All keyed state and timers that the operators keep, as text: a line for each value, list
    /// or map of a key, and for each timer.
    ///
    /// # Errors
    /// Returns an error if state cannot be written.
    pub fn print_state(&mut self) -> Result<String> {
        let mut out = String::new();
        for instance in 0..self.segments.len() {
            self.call(instance, Segment::snapshot)?;
            let node = self.head(instance);
            let Some(key_type) = node.key_type.as_deref().map(descriptor) else {
                continue;
            };
            writeln!(out, "{}", node.name).expect("text has room");
            for (index, state) in (0..).zip(&node.states) {
                for (key, namespace, kept) in host::kept(instance, index) {
                    let scope = show_scope(&key_type, &key, &namespace);
                    writeln!(out, "  {} {scope}: {}", state.name, show_kept(&kept, state)).expect("text has room");
                }
            }
            for timer in host::kept_timers(instance) {
                let scope = show_scope(&key_type, &timer.key, &timer.namespace);
                let domain = if timer.is_processing_time { "processing time" } else { "event time" };
                writeln!(out, "  timer {scope}: {} in {domain}", timer.timestamp).expect("text has room");
            }
        }
        Ok(out)
    }

    fn head(&self, instance: usize) -> &StreamNode {
        &self.declaration.nodes[self.segments[instance].nodes[0] as usize - 1]
    }

    /// What is kept in a state under a key.
    fn kept<K: Key + ?Sized, V: Owned>(
        &mut self,
        operator: &str,
        state: &str,
        key: K::Ref<'_>,
    ) -> Result<(Option<Kept>, StateDeclaration)> {
        let instance = (0..self.segments.len()).find(|instance| {
            let node = self.head(*instance);
            node.name == operator || node.uid.as_deref() == Some(operator)
        });
        let instance = instance.ok_or_else(|| Error::new(format!("no operator \"{operator}\" keeps keyed state")))?;
        let node = self.head(instance);
        let declared = (0..).zip(&node.states).find(|(_, declared)| declared.name == state);
        let (index, declaration) =
            declared.ok_or_else(|| Error::new(format!("\"{operator}\" has no state \"{state}\"")))?;
        for (what, declared, given) in [
            ("keys", node.key_type.as_ref(), descriptor_of::<K>()),
            ("values", Some(&declaration.value_type), descriptor_of::<V>()),
        ] {
            if declared != Some(&given) {
                let declared = declared.map_or("", String::as_str);
                return Err(Error::new(format!("{what} of state \"{state}\" are of type {declared}, not {given}")));
            }
        }
        let declaration = declaration.clone();
        self.call(instance, Segment::snapshot)?;
        let mut encoded = Vec::new();
        K::encode(key, &mut encoded);
        let mut kept = host::kept(instance, index).into_iter();
        let kept = kept.find(|(of, namespace, _)| *of == encoded && namespace.is_empty()).map(|(.., kept)| kept);
        Ok((kept, declaration))
    }
}

/// Reads a value, without the time at which it ends.
fn decode_value<V: Owned>(bytes: &[u8], declaration: &StateDeclaration) -> Result<V> {
    let (_, value) = split_end(bytes, declaration);
    Ok(V::decode(value, |value| value)?)
}

/// The time at which a value ends, if it does, and the value.
fn split_end<'a>(bytes: &'a [u8], declaration: &StateDeclaration) -> (Option<i64>, &'a [u8]) {
    match (declaration.time_to_live, bytes.split_first_chunk::<8>()) {
        (Some(_), Some((end, value))) => (Some(i64::from_le_bytes(*end)), value),
        _ => (None, bytes),
    }
}

/// Elements of a list.
fn elements(bytes: &[u8]) -> Vec<&[u8]> {
    let mut elements = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Ok(element) = reader.count().and_then(|count| reader.bytes(count)) {
        elements.push(element);
    }
    elements
}

fn descriptor(text: &str) -> TypeDescriptor {
    TypeDescriptor::parse(text).expect("types of the graph are descriptors")
}

fn show_scope(key_type: &TypeDescriptor, key: &[u8], namespace: &[u8]) -> String {
    let key = show(key_type, key);
    match window_of(namespace) {
        Some((start, end)) => format!("of {key} in [{start}, {end})"),
        None if namespace.is_empty() => format!("of {key}"),
        None => format!("of {key} in {namespace:?}"),
    }
}

fn show_kept(kept: &Kept, declaration: &StateDeclaration) -> String {
    use crate::bindings::engine::plugin::graph::StateKind;
    let value_type = descriptor(&declaration.value_type);
    let show_value = |bytes: &[u8]| match split_end(bytes, declaration) {
        (Some(end), value) => format!("{} until {end}", show(&value_type, value)),
        (None, value) => show(&value_type, value),
    };
    match kept {
        Kept::Bytes(bytes) if declaration.kind == StateKind::List => {
            let elements = elements(bytes).into_iter().map(show_value).collect::<Vec<_>>();
            format!("[{}]", elements.join(", "))
        }
        Kept::Bytes(bytes) => show_value(bytes),
        Kept::Map(pairs) => {
            let key_type = descriptor(declaration.map_key_type.as_deref().unwrap_or("bytes"));
            let pairs = pairs.iter().map(|(key, value)| format!("{}: {}", show(&key_type, key), show_value(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}
