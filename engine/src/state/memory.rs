//! State in memory: a table for each key group and state.

use std::{
    hash::{BuildHasher as _, Hasher as _},
    io,
    ops::RangeInclusive,
};

use super::{
    KeyGroupSize, KeyGroupSnapshot, KeyedStateBackend, Scope, StateDescriptor, StateShape, TakeEntry, VisitEntry,
    entries::{self, elements},
    has_ended,
    map_table::MapTable,
    pair_map::PairMap,
    value_table::{CleanUp, Place, Room, ValueTable},
};

/// Places of an index that the clean-up looks at on each write.
const CLEAN_UP_BUCKETS: usize = 2;
/// Entries that are fetched at a time.
const PREFETCHED_MAX: usize = 32;

#[derive(Clone)]
enum Table {
    Values(ValueTable),
    Maps(MapTable),
}

impl Table {
    fn new(shape: StateShape) -> Self {
        match shape {
            StateShape::Value => Self::Values(ValueTable::new(Room::Exact)),
            StateShape::List => Self::Values(ValueTable::new(Room::Growing)),
            StateShape::Map => Self::Maps(MapTable::default()),
        }
    }

    /// Bytes of the entries, and of the table itself.
    fn bytes(&self) -> u64 {
        let entries = match self {
            Self::Values(table) => table.bytes(),
            Self::Maps(table) => table.bytes(),
        };
        (size_of::<Self>() + entries) as u64
    }

    fn entries(&self) -> u64 {
        match self {
            Self::Values(table) => table.len() as u64,
            Self::Maps(table) => table.pairs() as u64,
        }
    }
}

/// What a look at an index found.
#[derive(Clone, Copy)]
enum Candidate<'a> {
    None,
    Value(&'a ValueTable, Place),
    Map(&'a PairMap),
}

const WRONG_SHAPE: &str = "the shape of the state was checked";

/// See the module.
pub struct MemoryStateBackend {
    first_group: u32,
    /// By key group, then by state; a key group that nothing was written to has none.
    groups: Vec<Vec<Table>>,
    /// The states of such a key group.
    empty: Vec<Table>,
    shapes: Vec<StateShape>,
    bytes: u64,
    /// Of a seed of its own, so that no plugin can choose keys that collide.
    hasher: hashbrown::DefaultHashBuilder,
}

impl MemoryStateBackend {
    /// Without entries, for states and key groups of one subtask.
    pub fn new(states: &[StateDescriptor], key_groups: &RangeInclusive<u32>) -> Self {
        // A state that is not kept by key has an empty table, so that places agree.
        let shapes: Vec<_> = states.iter().map(|state| state.shape.unwrap_or(StateShape::Value)).collect();
        Self {
            first_group: *key_groups.start(),
            groups: key_groups.clone().map(|_| Vec::new()).collect(),
            empty: shapes.iter().map(|shape| Table::new(*shape)).collect(),
            shapes,
            bytes: 0,
            hasher: hashbrown::DefaultHashBuilder::default(),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves are folded")]
    fn hash(&self, scope: Scope<'_>) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(scope.key);
        if !scope.namespace.is_empty() {
            hasher.write(scope.namespace);
        }
        let hash = hasher.finish();
        (hash ^ (hash >> 32)) as u32
    }

    fn tables(&self, key_group: u32) -> &[Table] {
        match &self.groups[(key_group - self.first_group) as usize][..] {
            [] => &self.empty,
            tables => tables,
        }
    }

    fn table(&self, state: usize, key_group: u32) -> &Table {
        &self.tables(key_group)[state]
    }

    fn values(&self, scope: Scope<'_>) -> &ValueTable {
        match self.table(scope.state, scope.key_group) {
            Table::Values(table) => table,
            Table::Maps(_) => unreachable!("{WRONG_SHAPE}"),
        }
    }

    fn maps(&self, scope: Scope<'_>) -> &MapTable {
        match self.table(scope.state, scope.key_group) {
            Table::Maps(table) => table,
            Table::Values(_) => unreachable!("{WRONG_SHAPE}"),
        }
    }

    /// Changes a table and keeps account of its bytes.
    fn change(&mut self, state: usize, key_group: u32, change: impl FnOnce(&mut Table)) {
        let tables = &mut self.groups[(key_group - self.first_group) as usize];
        if tables.is_empty() {
            tables.clone_from(&self.empty);
            self.bytes += tables.iter().map(Table::bytes).sum::<u64>();
        }
        let table = &mut tables[state];
        let before = table.bytes();
        change(table);
        self.bytes = self.bytes + table.bytes() - before;
    }

    fn change_values(&mut self, scope: Scope<'_>, change: impl FnOnce(&mut ValueTable, u32)) {
        let hash = self.hash(scope);
        self.change(scope.state, scope.key_group, |table| match table {
            Table::Values(table) => change(table, hash),
            Table::Maps(_) => unreachable!("{WRONG_SHAPE}"),
        });
    }

    fn change_maps(&mut self, scope: Scope<'_>, change: impl FnOnce(&mut MapTable, u32)) {
        let hash = self.hash(scope);
        self.change(scope.state, scope.key_group, |table| match table {
            Table::Maps(table) => change(table, hash),
            Table::Values(_) => unreachable!("{WRONG_SHAPE}"),
        });
    }
}

impl KeyedStateBackend for MemoryStateBackend {
    fn prefetch(&self, scopes: &[Scope<'_>]) {
        // Each loop waits for memory in many places at once; without them, the calls
        // that follow would wait for one after the other.
        let mut seen = 0;
        for scopes in scopes.chunks(PREFETCHED_MAX) {
            let mut found = [Candidate::None; PREFETCHED_MAX];
            for (candidate, scope) in found.iter_mut().zip(scopes) {
                *candidate = match self.table(scope.state, scope.key_group) {
                    Table::Values(table) => {
                        table.probe(self.hash(*scope)).map_or(Candidate::None, |place| Candidate::Value(table, place))
                    }
                    Table::Maps(table) => table.probe(self.hash(*scope)).map_or(Candidate::None, Candidate::Map),
                };
            }
            for candidate in found {
                seen ^= match candidate {
                    Candidate::None => 0,
                    Candidate::Value(table, place) => table.touch(place),
                    Candidate::Map(map) => map.touch(),
                };
            }
        }
        std::hint::black_box(seen);
    }

    fn get(&self, scope: Scope<'_>, out: &mut Vec<u8>) -> bool {
        let value = self.values(scope).get(self.hash(scope), scope.key, scope.namespace);
        out.extend_from_slice(value.unwrap_or_default());
        value.is_some()
    }

    fn value_bytes(&self, scope: Scope<'_>) -> usize {
        self.values(scope).get(self.hash(scope), scope.key, scope.namespace).map_or(0, <[u8]>::len)
    }

    fn put(&mut self, scope: Scope<'_>, value: &[u8]) {
        self.change_values(scope, |table, hash| table.put(hash, scope.key, scope.namespace, value));
    }

    fn append(&mut self, scope: Scope<'_>, elements: &[u8]) {
        self.change_values(scope, |table, hash| table.append(hash, scope.key, scope.namespace, elements));
    }

    fn delete(&mut self, scope: Scope<'_>) {
        match self.shapes[scope.state] {
            StateShape::Map => self.change_maps(scope, |table, hash| table.clear(hash, scope.key, scope.namespace)),
            StateShape::Value | StateShape::List => {
                self.change_values(scope, |table, hash| table.delete(hash, scope.key, scope.namespace));
            }
        }
    }

    fn get_pair(&self, scope: Scope<'_>, map_key: &[u8], out: &mut Vec<u8>) -> bool {
        let map = self.maps(scope).get(self.hash(scope), scope.key, scope.namespace);
        let value = map.and_then(|map| map.get(map_key));
        out.extend_from_slice(value.unwrap_or_default());
        value.is_some()
    }

    fn put_pair(&mut self, scope: Scope<'_>, map_key: &[u8], value: &[u8]) {
        self.change_maps(scope, |table, hash| table.put(hash, scope.key, scope.namespace, map_key, value));
    }

    fn delete_pair(&mut self, scope: Scope<'_>, map_key: &[u8]) {
        self.change_maps(scope, |table, hash| table.remove(hash, scope.key, scope.namespace, map_key));
    }

    fn scan_map(&self, scope: Scope<'_>, after: Option<&[u8]>, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        if let Some(map) = self.maps(scope).get(self.hash(scope), scope.key, scope.namespace) {
            for (map_key, value) in map.iter_after(after) {
                if !show(map_key, value) {
                    return;
                }
            }
        }
    }

    fn map_bytes(&self, scope: Scope<'_>) -> usize {
        let map = self.maps(scope).get(self.hash(scope), scope.key, scope.namespace);
        map.map_or(0, PairMap::bytes)
    }

    fn take(&mut self, state: usize, take: &mut TakeEntry<'_>) {
        for (key_group, tables) in (self.first_group..).zip(&mut self.groups) {
            let table = match tables.get_mut(state) {
                Some(Table::Values(table)) => table,
                Some(Table::Maps(_)) => unreachable!("{WRONG_SHAPE}"),
                None => continue,
            };
            let before = table.bytes() as u64;
            let goes_on = table.take(|key, namespace, value| take(Scope { state, key_group, key, namespace }, value));
            self.bytes = self.bytes + table.bytes() as u64 - before;
            if !goes_on {
                return;
            }
        }
    }

    fn clean_up(&mut self, state: usize, key_group: u32, now: i64) {
        let shape = self.shapes[state];
        self.change(state, key_group, |table| match table {
            Table::Values(table) if shape == StateShape::List => {
                table.clean_up(CLEAN_UP_BUCKETS, |list| clean_up_list(list, now));
            }
            Table::Values(table) => {
                table.clean_up(
                    CLEAN_UP_BUCKETS,
                    |value| {
                        if has_ended(value, now) { CleanUp::Delete } else { CleanUp::Keep }
                    },
                )
            }
            Table::Maps(table) => table.clean_up(CLEAN_UP_BUCKETS, |value| has_ended(value, now)),
        });
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn sizes(&self) -> Vec<KeyGroupSize> {
        let size = |(key_group, tables): (u32, &Vec<Table>)| KeyGroupSize {
            key_group,
            bytes: tables.iter().map(Table::bytes).sum(),
            entries: tables.iter().map(Table::entries).sum(),
        };
        (self.first_group..).zip(&self.groups).map(size).collect()
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn snapshot(&self, key_group: u32) -> Box<dyn KeyGroupSnapshot> {
        Box::new(MemorySnapshot { tables: self.tables(key_group).to_vec() })
    }
}

/// Leaves out the elements that have ended.
fn clean_up_list(list: &[u8], now: i64) -> CleanUp {
    if elements(list).next().is_none_or(|first| !has_ended(first, now)) {
        return CleanUp::Keep;
    }
    let mut left = Vec::new();
    for element in elements(list).filter(|element| !has_ended(element, now)) {
        entries::write(&mut left, element);
    }
    if left.is_empty() { CleanUp::Delete } else { CleanUp::Replace(left) }
}

/// A key group of a [`MemoryStateBackend`] at one moment.
pub struct MemorySnapshot {
    tables: Vec<Table>,
}

impl KeyGroupSnapshot for MemorySnapshot {
    fn visit(&mut self, state: usize, visit: &mut VisitEntry<'_>) -> io::Result<()> {
        match &self.tables[state] {
            Table::Values(table) => {
                table.iter().for_each(|(key, namespace, value)| visit(key, namespace, None, value));
            }
            Table::Maps(table) => {
                for (key, namespace, map) in table.iter() {
                    map.iter_after(None).for_each(|(map_key, value)| visit(key, namespace, Some(map_key), value));
                }
            }
        }
        Ok(())
    }
}
