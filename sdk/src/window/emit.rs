//! What becomes of the result of a window: how it is handed on.

use std::rc::Rc;

use super::TimeWindow;
use crate::{
    collector::Collector,
    current,
    error::{Outcome, Result},
    record::{Key, Owned, Pair, Record},
};

/// Hands on the result of a key and window.
pub trait Emit<K: Record + ?Sized, R, U: Record + ?Sized>: 'static {
    /// # Errors
    /// Returns the error of user code.
    fn emit(&self, key: K::Ref<'_>, window: TimeWindow, result: R, out: &mut Collector<U>) -> Result<()>;
}

/// The key and the result.
pub(crate) struct WithKey;

impl<K: Key + ?Sized, R: Owned> Emit<K, R, Pair<K, R>> for WithKey {
    #[inline]
    fn emit(&self, key: K::Ref<'_>, _: TimeWindow, result: R, out: &mut Collector<Pair<K, R>>) -> Result<()> {
        out.collect((key, result));
        Ok(())
    }
}

/// The result alone.
pub(crate) struct Alone;

impl<K: Key + ?Sized, R: Owned> Emit<K, R, R> for Alone {
    #[inline]
    fn emit(&self, _: K::Ref<'_>, _: TimeWindow, result: R, out: &mut Collector<R>) -> Result<()> {
        out.collect(result);
        Ok(())
    }
}

/// What a closure makes of key, window and result.
pub(crate) struct Then<F>(Rc<F>);

impl<F> Then<F> {
    pub(crate) fn of(emit: F) -> impl Fn() -> Self {
        let emit = Rc::new(emit);
        move || Self(Rc::clone(&emit))
    }
}

impl<K, R, U, F, O> Emit<K, R, U> for Then<F>
where
    K: Key + ?Sized,
    U: Record + ?Sized,
    F: for<'a> Fn(K::Ref<'a>, TimeWindow, R, &mut Collector<U>) -> O + 'static,
    O: Outcome,
{
    #[inline]
    fn emit(&self, key: K::Ref<'_>, window: TimeWindow, result: R, out: &mut Collector<U>) -> Result<()> {
        (self.0)(key, window, result, out).into_result()
    }
}

/// What a closure makes of window and result.
pub(crate) struct ThenAlone<F>(Rc<F>);

impl<F> ThenAlone<F> {
    pub(crate) fn of(emit: F) -> impl Fn() -> Self {
        let emit = Rc::new(emit);
        move || Self(Rc::clone(&emit))
    }
}

impl<K, R, U, F, O> Emit<K, R, U> for ThenAlone<F>
where
    K: Key + ?Sized,
    U: Record + ?Sized,
    F: Fn(TimeWindow, R, &mut Collector<U>) -> O + 'static,
    O: Outcome,
{
    #[inline]
    fn emit(&self, _: K::Ref<'_>, window: TimeWindow, result: R, out: &mut Collector<U>) -> Result<()> {
        (self.0)(window, result, out).into_result()
    }
}

/// Hands on a result, with the window's last millisecond as its timestamp.
#[inline]
pub(crate) fn emit_result<K, R, U>(
    emit: &impl Emit<K, R, U>,
    key: &[u8],
    window: TimeWindow,
    result: R,
    out: &mut Collector<U>,
) where
    K: Key + ?Sized,
    U: Record + ?Sized,
{
    out.set_timestamp(window.max_timestamp());
    let emitted = K::decode(key, |key| emit.emit(K::peek(&key), window, result, out));
    if let Err(error) = emitted.expect("keys are kept as they were encoded") {
        current::reject(current::node(), &error);
    }
}
