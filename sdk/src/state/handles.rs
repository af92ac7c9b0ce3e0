//! What functions use keyed state by: handles that go by the key that is being processed.

use std::{
    cell::{Cell, RefCell, RefMut},
    ops::ControlFlow,
    rc::Rc,
};

use super::{
    ListCache, MapCache, Slot, TimeToLive, ValueCache,
    declare::{Cached, Declaration, Prefetch, Scope, StateTtlConfig},
};
use crate::{
    operator::AggregateFunction,
    record::{Key, Owned, Record},
};

/// A cache with the place of the current key in it.
struct Scoped<C> {
    cache: RefCell<C>,
    scope: Rc<Scope>,
    /// Generation of the scope, and the slot then.
    slot: Cell<(u64, Option<Slot>)>,
    /// True if the state was read in this batch.
    was_read: Cell<bool>,
    declaration: Declaration,
}

impl<C> Scoped<C> {
    fn new(cache: C, scope: Rc<Scope>, declaration: Declaration) -> Rc<Self> {
        Rc::new(Self {
            cache: RefCell::new(cache),
            scope,
            slot: Cell::new((0, None)),
            was_read: Cell::new(false),
            declaration,
        })
    }

    fn cache(&self) -> RefMut<'_, C> {
        self.cache.try_borrow_mut().expect("a state was used within a closure that it had called")
    }

    /// The cache, and the slot of the current key.
    #[inline]
    fn at_key(&self, find: impl FnOnce(&mut C, u32, &[u8], &[u8]) -> Slot) -> (RefMut<'_, C>, Slot) {
        let mut cache = self.cache();
        let generation = self.scope.generation();
        let slot = match self.slot.get() {
            (known, Some(slot)) if known == generation => slot,
            _ => self.scope.with(|hash, key, namespace| find(&mut cache, hash, key, namespace)),
        };
        self.slot.set((generation, Some(slot)));
        (cache, slot)
    }
}

macro_rules! cached {
    ([$($generics:tt)*] $cache:ty, $wants:expr) => {
        impl<$($generics)*> Cached for Scoped<$cache> {
            fn begin_batch(&self) -> bool {
                let was_read = self.was_read.take();
                let mut cache = self.cache();
                cache.begin_batch();
                let wants: fn(bool) -> bool = $wants;
                wants(was_read) && !cache.is_complete()
            }

            fn prefetch(&self, each: &mut dyn FnMut(&mut Prefetch<'_>)) {
                let mut cache = self.cache();
                each(&mut |hash, namespace, key| cache.prefetch(hash, namespace, key));
                cache.fetch();
            }

            fn flush(&self) {
                self.cache().flush();
            }
        }
    };
}

cached!([V: Owned] ValueCache<V>, |_| true);
cached!([V: Owned] MapCache<V>, |_| true);
// A list that is only appended to need not be read.
cached!([T: Record + ?Sized] ListCache<T>, |was_read| was_read);

/// A value for each key; as Flink's `ValueState`.
///
/// Without one for the current key it is `None`; [`ValueState::value_or`] has a default. Made by [`super::States::value`].
pub struct ValueState<V>(Rc<Scoped<ValueCache<V>>>);

impl<V: Owned> ValueState<V> {
    pub(super) fn new(cache: ValueCache<V>, scope: Rc<Scope>, declaration: Declaration) -> Self {
        Self(Scoped::new(cache, scope, declaration))
    }

    pub(super) fn cached(&self) -> Rc<dyn Cached> {
        self.0.clone()
    }

    /// Lets values end after some time; to be called where the state is declared.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        self.set_time_to_live(config.time_to_live());
        self
    }

    fn set_time_to_live(&self, time_to_live: TimeToLive) {
        self.0.declaration.set_time_to_live(time_to_live);
        self.0.cache().set_time_to_live(time_to_live);
    }

    /// A copy of the value of the current key.
    #[inline]
    pub fn value(&self) -> Option<V>
    where
        V: Clone,
    {
        self.with(|value| value.cloned())
    }

    /// A copy of the value of the current key, or `default` if there is none: as Flink's `ValueState`
    /// with a default value. Nothing is written.
    ///
    /// ```
    /// use engine_sdk::{TestHarness, prelude::*};
    ///
    /// /// Numbers the records of each key.
    /// struct Number(ValueState<u64>);
    ///
    /// impl KeyedProcessFunction<str, str> for Number {
    ///     type Output = String;
    ///
    ///     fn process_element(&self, line: &str, _: &mut KeyedContext<'_, str>, out: &mut Collector<String>) -> Result<()> {
    ///         let number = self.0.value_or(0) + 1;
    ///         self.0.update(number);
    ///         out.collect(format!("{line}{number}"));
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let mut harness = TestHarness::of_stream(|lines: DataStream<str>| {
    ///     lines.key_by_ref(|line| line).process(|states| Number(states.value("number")))
    /// })?;
    /// for line in ["a", "b", "a"] {
    ///     harness.push::<str>(line)?;
    /// }
    /// assert_eq!(harness.records::<String>()?, ["a1", "b1", "a2"]);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn value_or(&self, default: V) -> V
    where
        V: Clone,
    {
        self.value().unwrap_or(default)
    }

    /// Lends the value of the current key.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(Option<&V>) -> R) -> R {
        let (cache, slot) = self.at_key();
        f(cache.get(slot))
    }

    /// Sets the value of the current key.
    #[inline]
    pub fn update(&self, value: V) {
        let (mut cache, slot) = self.at_key();
        *cache.value(slot) = Some(value);
    }

    /// Changes the value of the current key in place; `None` removes it.
    #[inline]
    pub fn modify<R>(&self, f: impl FnOnce(&mut Option<V>) -> R) -> R {
        let (mut cache, slot) = self.at_key();
        f(cache.value(slot))
    }

    /// Removes the value of the current key.
    pub fn clear(&self) {
        self.modify(|value| *value = None);
    }

    #[inline]
    fn at_key(&self) -> (RefMut<'_, ValueCache<V>>, Slot) {
        self.0.at_key(ValueCache::slot)
    }
}

/// A list for each key; as Flink's `ListState`. Adding to it reads nothing. The elements of
/// one key are bounded, together, by `state.value.bytes-max`.
///
/// Made by [`super::States::list`].
pub struct ListState<T: Record + ?Sized>(Rc<Scoped<ListCache<T>>>);

impl<T: Record + ?Sized> ListState<T> {
    pub(super) fn new(cache: ListCache<T>, scope: Rc<Scope>, declaration: Declaration) -> Self {
        Self(Scoped::new(cache, scope, declaration))
    }

    pub(super) fn cached(&self) -> Rc<dyn Cached> {
        self.0.clone()
    }

    /// Lets elements end after some time; to be called where the state is declared.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        self.0.declaration.set_time_to_live(config.time_to_live());
        self.0.cache().set_time_to_live(config.time_to_live());
        self
    }

    /// Appends an element.
    #[inline]
    pub fn add(&self, element: T::Ref<'_>) {
        let (mut cache, slot) = self.at_key();
        cache.append(slot, element);
    }

    /// Appends elements.
    pub fn add_all<'v>(&self, elements: impl IntoIterator<Item = T::Ref<'v>>) {
        let (mut cache, slot) = self.at_key();
        elements.into_iter().for_each(|element| cache.append(slot, element));
    }

    /// The elements, in the order in which they were added.
    pub fn get(&self) -> Vec<T>
    where
        T: Owned,
    {
        let mut elements = Vec::new();
        self.for_each(|element| elements.push(element));
        elements
    }

    /// Hands out the elements, in the order in which they were added.
    pub fn for_each(&self, f: impl FnMut(T::View<'_>)) {
        self.0.was_read.set(true);
        let (mut cache, slot) = self.at_key();
        cache.for_each(slot, f);
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.was_read.set(true);
        let (mut cache, slot) = self.at_key();
        cache.is_empty(slot)
    }

    /// Replaces the elements.
    pub fn update<'v>(&self, elements: impl IntoIterator<Item = T::Ref<'v>>) {
        let (mut cache, slot) = self.at_key();
        cache.replace(slot, elements);
    }

    /// Removes all elements.
    pub fn clear(&self) {
        let (mut cache, slot) = self.at_key();
        cache.clear(slot);
    }

    #[inline]
    fn at_key(&self) -> (RefMut<'_, ListCache<T>>, Slot) {
        self.0.at_key(ListCache::slot)
    }
}

/// A map for each key of the stream, from keys of its own; as Flink's `MapState`.
///
/// Pairs are walked over in the order of the bytes of their encoded keys: text as it
/// sorts, numbers not. Large maps are read pair by pair. Made by [`super::States::map`].
pub struct MapState<M: ?Sized, V> {
    scoped: Rc<Scoped<MapCache<V>>>,
    scratch: RefCell<Vec<u8>>,
    _key: std::marker::PhantomData<Rc<M>>,
}

impl<M: Key + ?Sized, V: Owned> MapState<M, V> {
    pub(super) fn new(cache: MapCache<V>, scope: Rc<Scope>, declaration: Declaration) -> Self {
        Self {
            scoped: Scoped::new(cache, scope, declaration),
            scratch: RefCell::default(),
            _key: std::marker::PhantomData,
        }
    }

    pub(super) fn cached(&self) -> Rc<dyn Cached> {
        self.scoped.clone()
    }

    /// Lets pairs end after some time; to be called where the state is declared.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        self.scoped.declaration.set_time_to_live(config.time_to_live());
        self.scoped.cache().set_time_to_live(config.time_to_live());
        self
    }

    /// A copy of the value under a key.
    pub fn get(&self, key: M::Ref<'_>) -> Option<V>
    where
        V: Clone,
    {
        self.with(key, |value| value.cloned())
    }

    /// Lends the value under a key.
    pub fn with<R>(&self, key: M::Ref<'_>, f: impl FnOnce(Option<&V>) -> R) -> R {
        let (mut cache, slot) = self.at_key();
        self.encoded(key, |key| f(cache.get(slot, key)))
    }

    /// True if there is a value under a key.
    pub fn contains(&self, key: M::Ref<'_>) -> bool {
        self.with(key, |value| value.is_some())
    }

    /// Sets the value under a key.
    pub fn put(&self, key: M::Ref<'_>, value: V) {
        let (mut cache, slot) = self.at_key();
        self.encoded(key, |key| cache.put(slot, key, value));
    }

    /// Changes the value under a key in place; `None` removes it.
    pub fn modify<R>(&self, key: M::Ref<'_>, f: impl FnOnce(&mut Option<V>) -> R) -> R {
        let (mut cache, slot) = self.at_key();
        self.encoded(key, |key| cache.modify(slot, key, f))
    }

    /// Removes the value under a key.
    pub fn remove(&self, key: M::Ref<'_>) {
        let (mut cache, slot) = self.at_key();
        self.encoded(key, |key| cache.remove(slot, key));
    }

    /// Hands out the pairs.
    pub fn for_each(&self, mut f: impl FnMut(M::Ref<'_>, &V)) {
        let (mut cache, slot) = self.at_key();
        cache.scan(slot, &[], |key, value| {
            M::decode(key, |key| f(M::peek(&key), value)).expect("keys of the map were encoded here");
            ControlFlow::Continue(())
        });
    }

    /// Copies of the pairs.
    pub fn entries(&self) -> Vec<(M, V)>
    where
        M: Owned + Clone,
        V: Clone,
    {
        let mut entries = Vec::new();
        self.for_each(|key, value| entries.push((key.clone(), value.clone())));
        entries
    }

    /// Copies of the keys.
    pub fn keys(&self) -> Vec<M>
    where
        M: Owned + Clone,
    {
        let mut keys = Vec::new();
        self.for_each(|key, _| keys.push(key.clone()));
        keys
    }

    /// Copies of the values.
    pub fn values(&self) -> Vec<V>
    where
        V: Clone,
    {
        let mut values = Vec::new();
        self.for_each(|_, value| values.push(value.clone()));
        values
    }

    /// True if there are no pairs.
    pub fn is_empty(&self) -> bool {
        let (mut cache, slot) = self.at_key();
        cache.is_empty(slot)
    }

    /// Removes all pairs.
    pub fn clear(&self) {
        let (mut cache, slot) = self.at_key();
        cache.clear(slot);
    }

    #[inline]
    fn at_key(&self) -> (RefMut<'_, MapCache<V>>, Slot) {
        self.scoped.at_key(MapCache::slot)
    }

    fn encoded<R>(&self, key: M::Ref<'_>, f: impl FnOnce(&[u8]) -> R) -> R {
        let mut scratch = self.scratch.take();
        let result = M::with_encoded(key, &mut scratch, f);
        self.scratch.replace(scratch);
        result
    }
}

/// A value for each key, to which what is added is reduced; as Flink's `ReducingState`.
///
/// Made by [`super::States::reducing`].
pub struct ReducingState<V> {
    value: ValueState<V>,
    reduce: Rc<dyn Fn(V, V) -> V>,
}

impl<V: Owned> ReducingState<V> {
    pub(super) fn new(value: ValueState<V>, reduce: impl Fn(V, V) -> V + 'static) -> Self {
        Self { value, reduce: Rc::new(reduce) }
    }

    /// Lets values end after some time; to be called where the state is declared.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        self.value.set_time_to_live(config.time_to_live());
        self
    }

    /// Reduces the value so far and this one to one.
    pub fn add(&self, added: V) {
        self.value.modify(|value| {
            *value = Some(match value.take() {
                Some(reduced) => (self.reduce)(reduced, added),
                None => added,
            });
        });
    }

    /// A copy of the reduced value.
    pub fn get(&self) -> Option<V>
    where
        V: Clone,
    {
        self.value.value()
    }

    /// Removes the value.
    pub fn clear(&self) {
        self.value.clear();
    }
}

/// An accumulator for each key; as Flink's `AggregatingState`.
///
/// Made by [`super::States::aggregating`].
pub struct AggregatingState<T: Record + ?Sized, A: AggregateFunction<T>> {
    value: ValueState<A::Accumulator>,
    function: A,
}

impl<T: Record + ?Sized, A: AggregateFunction<T>> AggregatingState<T, A> {
    pub(super) fn new(value: ValueState<A::Accumulator>, function: A) -> Self {
        Self { value, function }
    }

    /// Lets accumulators end after some time; to be called where the state is declared.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        self.value.set_time_to_live(config.time_to_live());
        self
    }

    /// Adds a record.
    pub fn add(&self, record: T::Ref<'_>) {
        self.value.modify(|accumulator| {
            self.function.add(record, accumulator.get_or_insert_with(|| self.function.create_accumulator()));
        });
    }

    /// The result so far; none before the first record.
    pub fn get(&self) -> Option<A::Output> {
        self.value.with(|accumulator| accumulator.map(|accumulator| self.function.get_result(accumulator)))
    }

    /// Removes the accumulator.
    pub fn clear(&self) {
        self.value.clear();
    }
}
