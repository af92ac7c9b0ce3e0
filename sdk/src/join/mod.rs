//! Joins of two streams.
//!
//! * [`interval`]: records whose timestamps are close to one another.
//! * [`regular`]: all pairs of records with one key.
//! * [`window`]: records with one key and in one window.
//!
//! The first two keep the records of each input in lists by key, encoded, and read those of the
//! other input when a record comes: [`side`].

mod side;
mod interval;
mod regular;
mod window;
#[cfg(test)]
mod tests;

use std::rc::Rc;

pub use self::{
    interval::{IntervalJoin, IntervalJoinContext, IntervalJoined},
    regular::RegularJoin,
    window::{JoinEqualTo, JoinWhere, JoinedStreams, WindowedJoin},
};
use crate::{
    bindings::engine::plugin::graph::StateDeclaration,
    connected_streams::two_input_operator,
    data_stream::DataStream,
    key::KeySelector,
    keyed_stream::KeyedStream,
    operator::{TwoInputFactory, TwoInputFunction},
    record::{Key, Record},
    state::StateBackend,
};

/// Two streams with the same type of key.
struct KeyedInputs<L: ?Sized, R: ?Sized, K: ?Sized, A, B> {
    left: KeyedStream<L, K, A>,
    right: KeyedStream<R, K, B>,
}

impl<L, R, K, A, B> KeyedInputs<L, R, K, A, B>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + ?Sized,
    A: KeySelector<L, K>,
    B: KeySelector<R, K>,
{
    /// Adds an operator with states and timers behind both streams.
    fn operator<U, F>(
        &self,
        name_and_kind: (&str, &str),
        states: Vec<StateDeclaration>,
        make: impl Fn(Rc<A>, Rc<B>, &StateBackend) -> F + 'static,
    ) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: TwoInputFunction<L, R, U>,
    {
        let (left, right) = (self.left.selector(), self.right.selector());
        let make = move |states: &StateBackend| make(Rc::clone(&left), Rc::clone(&right), states);
        let factory = Box::new(TwoInputFactory::<L, R, U, _>::new(make));
        let stream = two_input_operator(&self.left, &self.right, name_and_kind, factory);
        self.left.graph.borrow_mut().set_keyed::<K>(stream.origins[0].node, states);
        stream
    }
}
