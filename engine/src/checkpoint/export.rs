//! The entries of a state, or the timers of an operator, out of a savepoint or checkpoint.
//!
//! Keyed state is restored one key group at a time, by what restores it into a job: so
//! parts build upon each other as they do there, and no more than a key group is in memory.

use std::{collections::BTreeMap, fmt, io};

use bytes::Bytes;
use engine_rows::{descriptor::TypeDescriptor, json::write_json};

use super::{
    CheckpointMetadata, CheckpointStorage, CheckpointStorageError, DistributionMode, KeyGroupSection, KeyedStateHandle,
    KeyedStatePart, OperatorState, StateData,
};
use crate::{
    base::clock::Timestamp,
    graph::stream_graph::{StateDeclaration, StateKind},
    state::{KeyedState, KeyedStateContext, StateDescriptor, StateShape, TimeDomain},
};

/// Bytes of a window: start and end.
const WINDOW_BYTES: usize = 16;

/// Something cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is no such operator or state, or several.
    #[error("{0}")]
    NotThere(String),
    /// Files of the operator are missing or damaged.
    #[error("{}", .0.iter().map(|error| format!("{error}")).collect::<Vec<_>>().join("; "))]
    Files(Vec<CheckpointStorageError>),
    /// Bytes are not what the metadata says.
    #[error("{0}")]
    Damaged(String),
    /// Entries could not be handed out.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// A part of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Column {
    /// The subtask whose list it stands in.
    Subtask,
    /// The key.
    Key,
    /// The window.
    Window,
    /// The key within a map.
    MapKey,
    /// The place within a list.
    Index,
    /// The value.
    Value,
    /// The time at which it ends.
    Until,
    /// Event time or processing time.
    Domain,
    /// When the timer is due.
    Timestamp,
}

/// The namespace of an entry.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Namespace {
    /// It belongs to the key alone.
    #[default]
    None,
    /// Start, and the end that does not belong to it; milliseconds since the Unix epoch.
    Window(i64, i64),
    /// Something that another SDK made.
    Other(Vec<u8>),
}

impl From<&[u8]> for Namespace {
    fn from(bytes: &[u8]) -> Self {
        let time = |bytes: &[u8]| {
            bytes.first_chunk().map(|bytes| (u64::from_be_bytes(*bytes) ^ (1 << 63)).cast_signed()).unwrap_or_default()
        };
        match bytes.len() {
            0 => Self::None,
            WINDOW_BYTES => Self::Window(time(bytes), time(&bytes[WINDOW_BYTES / 2..])),
            _ => Self::Other(bytes.to_vec()),
        }
    }
}

/// An entry, of which only the columns of the export mean something. Keys and values are JSON.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ExportedEntry {
    /// [`Column::Subtask`], zero-based.
    pub subtask: u32,
    /// [`Column::Key`].
    pub key: String,
    /// [`Column::Window`].
    pub namespace: Namespace,
    /// [`Column::MapKey`].
    pub map_key: String,
    /// [`Column::Index`], zero-based.
    pub index: u64,
    /// [`Column::Value`].
    pub value: String,
    /// [`Column::Until`], milliseconds since the Unix epoch.
    pub until: i64,
    /// [`Column::Domain`].
    pub domain: Option<TimeDomain>,
    /// [`Column::Timestamp`], milliseconds since the Unix epoch.
    pub timestamp: i64,
}

/// What is exported of an operator.
#[derive(Debug)]
enum Exported {
    State(StateDeclaration),
    Timers,
}

/// Takes the entries.
type TakeEntry<'a> = dyn FnMut(&ExportedEntry) -> io::Result<()> + 'a;

/// One state, or the timers, of an operator in a savepoint or checkpoint.
#[derive(Debug)]
pub struct StateExport<'a> {
    storage: &'a CheckpointStorage,
    operator: &'a OperatorState,
    exported: Exported,
}

/// How an operator may be named: by its uid, its id, or its name.
fn is_called(operator: &OperatorState, name: &str) -> bool {
    operator.uid.as_deref() == Some(name) || operator.name == name || operator.operator_id.to_string() == name
}

/// The name by which no other operator is called.
fn name_of(operator: &OperatorState, metadata: &CheckpointMetadata) -> String {
    let names = operator.uid.iter().chain([&operator.name]);
    let is_unique = |name: &&String| metadata.operators.values().filter(|other| is_called(other, name)).count() == 1;
    names.into_iter().find(is_unique).cloned().unwrap_or_else(|| operator.operator_id.to_string())
}

fn not_one(what: &str, found: &[&OperatorState], known: &[String]) -> ExportError {
    ExportError::NotThere(match found {
        [] if known.is_empty() => format!("there is no {what} in it, nor any other yet"),
        [] => format!("there is no {what}; there are: {}", known.join(", ")),
        several => {
            let ids: Vec<String> = several.iter().map(|operator| operator.operator_id.to_string()).collect();
            format!("there are several of {what}: name the operator by its id, one of {}", ids.join(", "))
        }
    })
}

impl OperatorState {
    /// All states of its subtasks, each once.
    pub fn states(&self) -> Vec<&StateDeclaration> {
        let mut states: Vec<&StateDeclaration> = Vec::new();
        for subtask in self.subtasks.values() {
            let keyed = subtask.keyed.iter().flat_map(|keyed| &keyed.states);
            for state in keyed.chain(subtask.lists.iter().map(|list| &list.declaration)) {
                if states.iter().all(|known| known.name != state.name) {
                    states.push(state);
                }
            }
        }
        states
    }

    /// Type of its keys; none: it has no keyed state.
    pub fn key_type(&self) -> Option<&str> {
        self.subtasks.values().find_map(|subtask| subtask.keyed.as_ref()).map(|keyed| keyed.key_type.as_str())
    }
}

impl<'a> StateExport<'a> {
    /// The state that is called `OPERATOR/STATE`, the operator by its uid, id or name.
    ///
    /// # Errors
    /// Returns an error that lists all states if there is none or several.
    pub fn of_state(
        storage: &'a CheckpointStorage,
        metadata: &'a CheckpointMetadata,
        name: &str,
    ) -> Result<Self, ExportError> {
        let mut known = Vec::new();
        let mut found = Vec::new();
        for operator in metadata.operators.values() {
            for state in operator.states() {
                known.push(format!("{}/{}", name_of(operator, metadata), state.name));
                let named = name.strip_suffix(&state.name).and_then(|rest| rest.strip_suffix('/'));
                if named.is_some_and(|named| is_called(operator, named)) {
                    found.push((operator, state));
                }
            }
        }
        if let [(operator, state)] = found[..] {
            return Ok(Self { storage, operator, exported: Exported::State(state.clone()) });
        }
        let operators: Vec<&OperatorState> = found.iter().map(|(operator, _)| *operator).collect();
        Err(not_one(&format!("state \"{name}\" (OPERATOR/STATE)"), &operators, &known))
    }

    /// The timers of an operator, by its uid, id or name.
    ///
    /// # Errors
    /// Returns an error that lists all operators with keyed state if there is none or several.
    pub fn of_timers(
        storage: &'a CheckpointStorage,
        metadata: &'a CheckpointMetadata,
        name: &str,
    ) -> Result<Self, ExportError> {
        let keyed: Vec<_> = metadata.operators.values().filter(|operator| operator.key_type().is_some()).collect();
        let found: Vec<_> = keyed.iter().copied().filter(|operator| is_called(operator, name)).collect();
        if let [operator] = found[..] {
            return Ok(Self { storage, operator, exported: Exported::Timers });
        }
        let known: Vec<String> = keyed.iter().map(|operator| name_of(operator, metadata)).collect();
        Err(not_one(&format!("operator \"{name}\" with keyed state and timers"), &found, &known))
    }

    /// What its entries have.
    pub fn columns(&self) -> Vec<Column> {
        let Exported::State(state) = &self.exported else {
            return vec![Column::Key, Column::Window, Column::Domain, Column::Timestamp];
        };
        let mut columns = match state.kind {
            StateKind::Value | StateKind::Reducing | StateKind::Aggregating => vec![Column::Key, Column::Window],
            StateKind::List => vec![Column::Key, Column::Window, Column::Index],
            StateKind::Map => vec![Column::Key, Column::Window, Column::MapKey],
            StateKind::Broadcast => vec![Column::MapKey],
            StateKind::OperatorList | StateKind::OperatorUnionList => vec![Column::Subtask, Column::Index],
        };
        columns.push(Column::Value);
        columns.extend(state.time_to_live.map(|_| Column::Until));
        columns
    }

    /// Hands out all entries: subtask by subtask, of keyed state and timers by key group,
    /// the entries of a key group in no particular order.
    ///
    /// # Errors
    /// Returns an error, before the first entry, if a file of the operator is missing or
    /// damaged; and if bytes do not have the type that the metadata names, or `take` fails.
    pub fn export(&self, take: &mut TakeEntry<'_>) -> Result<(), ExportError> {
        let handles = self.operator.subtasks.values().filter_map(|subtask| subtask.keyed.as_ref());
        let data = handles.flat_map(|handle| &handle.parts).map(|part| &part.data);
        let files = data.filter_map(|data| match data {
            StateData::File(file) => Some(file),
            StateData::Inline(_) => None,
        });
        let broken = self.storage.broken_files(files);
        if !broken.is_empty() {
            return Err(ExportError::Files(broken));
        }
        for (subtask, state) in &self.operator.subtasks {
            if let Some(handle) = &state.keyed {
                self.export_keyed(*subtask, handle, take)?;
            }
            let Exported::State(declaration) = &self.exported else { continue };
            let Some(list) = state.lists.iter().find(|list| list.declaration.name == declaration.name) else {
                continue;
            };
            self.export_list(*subtask, declaration, &list.elements, take)?;
            if list.mode == DistributionMode::Broadcast {
                // All subtasks have the same.
                break;
            }
        }
        Ok(())
    }

    fn export_list(
        &self,
        subtask: u32,
        declaration: &StateDeclaration,
        elements: &[Vec<u8>],
        take: &mut TakeEntry<'_>,
    ) -> Result<(), ExportError> {
        let types = EntryTypes::of(declaration)?;
        for (index, element) in (0..).zip(elements) {
            let mut entry = ExportedEntry { subtask, index, ..ExportedEntry::default() };
            let mut value = element.as_slice();
            let map_key = (declaration.kind == StateKind::Broadcast).then(|| take_counted(&mut value)).transpose();
            map_key
                .and_then(|map_key| types.fill(map_key, value, &mut entry))
                .map_err(|problem| self.damaged(format_args!("element {index} of subtask {subtask}: {problem}")))?;
            take(&entry)?;
        }
        Ok(())
    }

    fn export_keyed(
        &self,
        subtask: u32,
        handle: &KeyedStateHandle,
        take: &mut TakeEntry<'_>,
    ) -> Result<(), ExportError> {
        let places: Vec<Option<usize>> = match &self.exported {
            // Timers are restored whatever becomes of the states.
            Exported::Timers => vec![None; handle.states.len()],
            Exported::State(wanted) => {
                handle.states.iter().map(|state| (state.name == wanted.name).then_some(0)).collect()
            }
        };
        let descriptor = match &self.exported {
            Exported::State(state) => shape(state.kind).map(|shape| StateDescriptor {
                operator: self.operator.name.clone(),
                name: state.name.clone(),
                shape: Some(shape),
                has_time_to_live: state.time_to_live.is_some(),
                taken_at_end: false,
            }),
            Exported::Timers => None,
        };
        if descriptor.is_none() && matches!(self.exported, Exported::State(_)) {
            return Ok(());
        }
        let mut key_groups: BTreeMap<u32, Vec<(&KeyedStatePart, &KeyGroupSection)>> = BTreeMap::new();
        for part in &handle.parts {
            for section in &part.sections {
                key_groups.entry(section.key_group).or_default().push((part, section));
            }
        }
        for (key_group, sections) in key_groups {
            if self.operator.max_parallelism <= key_group {
                return Err(self.damaged(format_args!("there is no key group {key_group}")));
            }
            let mut state = KeyedState::new(KeyedStateContext {
                operator: self.operator.name.clone(),
                is_keyed: true,
                states: descriptor.iter().cloned().collect(),
                // As if each key group had a subtask.
                subtask_index: key_group,
                parallelism: self.operator.max_parallelism,
                max_parallelism: self.operator.max_parallelism,
                bytes_max: u64::MAX,
                value_bytes_max: usize::MAX,
                timers_max: u64::MAX,
                result_bytes_max: usize::MAX,
            });
            for (part, section) in sections {
                let content = self.read(part, section)?;
                let restored = state.restore(key_group, &content, &places, Timestamp::MIN);
                restored
                    .map_err(|error| self.damaged(format_args!("subtask {subtask}{}: {error}", file_text(part))))?;
            }
            state.end_restore();
            self.export_key_group(key_group, &state, &handle.key_type, take)?;
        }
        Ok(())
    }

    fn export_key_group(
        &self,
        key_group: u32,
        state: &KeyedState,
        key_type: &str,
        take: &mut TakeEntry<'_>,
    ) -> Result<(), ExportError> {
        let key_type = descriptor(key_type)?;
        let mut result = Ok(());
        match &self.exported {
            Exported::Timers => {
                for domain in [TimeDomain::EventTime, TimeDomain::ProcessingTime] {
                    state.timers(domain).visit(|timestamp, key, namespace| {
                        if result.is_ok() {
                            let mut entry =
                                ExportedEntry { domain: Some(domain), timestamp, ..of_namespace(namespace) };
                            result =
                                self.json(&key_type, key, &mut entry.key, key_group).and_then(|()| Ok(take(&entry)?));
                        }
                    });
                }
            }
            Exported::State(declaration) => {
                let types = EntryTypes::of(declaration)?;
                state.key_group_snapshot(key_group).visit(0, &mut |key, namespace, map_key, value| {
                    if result.is_ok() {
                        let mut entry = of_namespace(namespace);
                        result = self.json(&key_type, key, &mut entry.key, key_group).and_then(|()| {
                            let place = format!("key {} of key group {key_group}", entry.key);
                            let damaged = |problem: String| self.damaged(format_args!("{place}: {problem}"));
                            for value in types.values(value).map_err(damaged)? {
                                types.fill(map_key, value, &mut entry).map_err(damaged)?;
                                take(&entry)?;
                                entry.index += 1;
                            }
                            Ok(())
                        });
                    }
                })?;
            }
        }
        result
    }

    fn json(
        &self,
        descriptor: &TypeDescriptor,
        bytes: &[u8],
        out: &mut String,
        key_group: u32,
    ) -> Result<(), ExportError> {
        let written = write_json(descriptor, bytes, out);
        written.map_err(|problem| self.damaged(format_args!("a key of key group {key_group}: {problem}")))
    }

    /// Reads the part of one key group.
    fn read(&self, part: &KeyedStatePart, section: &KeyGroupSection) -> Result<Bytes, ExportError> {
        let end = section.offset.checked_add(section.bytes).filter(|end| *end <= part.data.bytes());
        let Some(end) = end else {
            let what = format_args!("key group {} ends behind the end{}", section.key_group, file_text(part));
            return Err(self.damaged(what));
        };
        match &part.data {
            StateData::Inline(bytes) => {
                let place = |offset: u64| usize::try_from(offset).expect("the bytes are in memory");
                Ok(Bytes::copy_from_slice(&bytes[place(section.offset)..place(end)]))
            }
            StateData::File(file) => {
                self.storage.read_range(file, section.offset..end).map_err(|error| ExportError::Files(vec![error]))
            }
        }
    }

    fn damaged(&self, what: fmt::Arguments<'_>) -> ExportError {
        let state = match &self.exported {
            Exported::State(state) => format!("state \"{}\"", state.name),
            Exported::Timers => "timers".to_owned(),
        };
        ExportError::Damaged(format!("{state} of operator \"{}\" cannot be read: {what}", self.operator.name))
    }
}

fn of_namespace(namespace: &[u8]) -> ExportedEntry {
    ExportedEntry { namespace: namespace.into(), ..ExportedEntry::default() }
}

fn file_text(part: &KeyedStatePart) -> String {
    match &part.data {
        StateData::File(file) => format!(" of {}", file.path),
        StateData::Inline(_) => " of the metadata".to_owned(),
    }
}

fn shape(kind: StateKind) -> Option<StateShape> {
    match kind {
        StateKind::Value | StateKind::Reducing | StateKind::Aggregating => Some(StateShape::Value),
        StateKind::List => Some(StateShape::List),
        StateKind::Map => Some(StateShape::Map),
        StateKind::Broadcast | StateKind::OperatorList | StateKind::OperatorUnionList => None,
    }
}

fn descriptor(text: &str) -> Result<TypeDescriptor, ExportError> {
    TypeDescriptor::parse(text).map_err(|error| ExportError::Damaged(format!("type {text}: {error}")))
}

/// What the bytes of a state's entries are.
struct EntryTypes {
    value: TypeDescriptor,
    map_key: Option<TypeDescriptor>,
    is_keyed_list: bool,
    has_time_to_live: bool,
}

impl EntryTypes {
    fn of(state: &StateDeclaration) -> Result<Self, ExportError> {
        Ok(Self {
            value: descriptor(&state.value_type)?,
            map_key: state.map_key_type.as_deref().map(descriptor).transpose()?,
            is_keyed_list: state.kind == StateKind::List,
            has_time_to_live: state.time_to_live.is_some(),
        })
    }

    /// The elements of a list, or the one value that it is.
    fn values<'b>(&self, bytes: &'b [u8]) -> Result<Vec<&'b [u8]>, String> {
        if !self.is_keyed_list {
            return Ok(vec![bytes]);
        }
        let mut rest = bytes;
        let mut elements = Vec::new();
        while !rest.is_empty() {
            elements.push(take_counted(&mut rest)?);
        }
        Ok(elements)
    }

    /// Decodes map key, end and value.
    fn fill(&self, map_key: Option<&[u8]>, mut value: &[u8], entry: &mut ExportedEntry) -> Result<(), String> {
        if let Some(map_key) = map_key {
            let map_key_type = self.map_key.as_ref().ok_or("it has a map key, but no type of it")?;
            entry.map_key.clear();
            write_json(map_key_type, map_key, &mut entry.map_key)?;
        }
        if self.has_time_to_live {
            let (until, rest) = value.split_first_chunk().ok_or("the time at which it ends is cut off")?;
            entry.until = i64::from_le_bytes(*until);
            value = rest;
        }
        entry.value.clear();
        write_json(&self.value, value, &mut entry.value)
    }
}

/// Bytes behind their length.
fn take_counted<'b>(rest: &mut &'b [u8]) -> Result<&'b [u8], String> {
    let cut = || "it ends too early".to_owned();
    let (length, behind) = rest.split_first_chunk().ok_or_else(cut)?;
    let (taken, left) = behind.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(cut)?;
    *rest = left;
    Ok(taken)
}

#[cfg(test)]
mod tests;
