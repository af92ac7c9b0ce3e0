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
    bindings::engine::plugin::graph::{Operator as OperatorKind, StateDeclaration},
    data_stream::DataStream,
    graph::NodeTypes,
    keyed_stream::KeyedStream,
    operator::{TwoInputFactory, TwoInputFunction},
    record::{Key, Record, descriptor_of},
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
    A: crate::KeySelector<L, K>,
    B: crate::KeySelector<R, K>,
{
    /// Adds an operator with states and timers behind both streams.
    fn operator<U, F>(
        &self,
        (name, kind): (&str, &str),
        states: Vec<StateDeclaration>,
        make: impl Fn(Rc<A>, Rc<B>, &StateBackend) -> F + 'static,
    ) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: TwoInputFunction<L, R, U>,
    {
        let mut graph = self.left.graph.borrow_mut();
        let inputs = vec![descriptor_of::<L>(), descriptor_of::<R>()];
        let types = NodeTypes { inputs, output: Some(descriptor_of::<U>()) };
        let node = graph.add_node(name, OperatorKind::Guest(kind.to_owned()), types);
        let (left, right) = (self.left.selector(), self.right.selector());
        let make = move |states: &StateBackend| make(Rc::clone(&left), Rc::clone(&right), states);
        graph.add_factory(node, Box::new(TwoInputFactory::<L, R, U, _>::new(make)));
        graph.connect(&self.left.origins, (node, 0), &descriptor_of::<L>());
        graph.connect(&self.right.origins, (node, 1), &descriptor_of::<R>());
        graph.set_keyed::<K>(node, states);
        drop(graph);
        DataStream::of_node(Rc::clone(&self.left.graph), node)
    }
}
