//! Panes of one key: what sliding windows are put together from.
//!
//! The windows of a key share panes: parts of time in which no window begins or ends.
//! The result over the panes of a window comes from two stacks, so that each pane is
//! merged a constant number of times while it is part of any number of windows:
//! `older` holds, for the first panes of the window, what each and all up to the last
//! of them come to; `newer` is what the panes behind them come to. When the window
//! has slid past all of `older`, it is made anew of the panes that `newer` stood for.
//! Both are derived from the panes, and made anew where a late record changes one of those.
//!
//! Source: the two-stacks algorithm as in Tangwongsan, Hirzel, Schneider,
//! "Low-Latency Sliding-Window Aggregation in Worst-Case Constant Time" (DEBS 2017), section 2.

use std::collections::VecDeque;

use super::TimeWindow;
use crate::{
    error::Result,
    record::{DecodeError, Nesting, Owned, Reader, Record, TypeDescriptor, Value, decode_value, owned_record},
};

/// The panes of one key, in the order of time, with the timer that is pending for it.
pub(crate) struct Panes<A> {
    /// Timestamp of the only timer; `i64::MAX` if none is pending.
    pub(crate) timer: i64,
    /// Those with content.
    panes: VecDeque<Pane<A>>,
    /// Index of the first pane of the window that was evaluated last.
    first: usize,
    /// Of the panes from `first` on: the last element stands for all of them up to the number
    /// of elements, the one before it for all but the first, and so on.
    older: Vec<A>,
    /// What the `newer_count` panes behind those come to.
    newer: Option<A>,
    newer_count: usize,
}

struct Pane<A> {
    start: i64,
    content: Option<A>,
}

impl<A> Default for Panes<A> {
    fn default() -> Self {
        Self { timer: i64::MAX, panes: VecDeque::new(), first: 0, older: Vec::new(), newer: None, newer_count: 0 }
    }
}

impl<A: Clone> Panes<A> {
    /// Changes the content of the pane that starts at `start`.
    #[inline]
    pub(crate) fn update<R>(&mut self, start: i64, f: impl FnOnce(&mut Option<A>) -> R) -> R {
        let index = match self.panes.back() {
            Some(pane) if pane.start == start => self.panes.len() - 1,
            Some(pane) if start < pane.start => self.index_of(start),
            _ => {
                self.panes.push_back(Pane { start, content: None });
                self.panes.len() - 1
            }
        };
        if index < self.first + self.older.len() + self.newer_count && self.first <= index {
            self.forget_results();
        }
        let pane = &mut self.panes[index];
        let result = f(&mut pane.content);
        if pane.content.is_none() {
            self.remove(index);
        }
        result
    }

    /// Place of a pane that is not the last; made if there is none.
    #[cold]
    fn index_of(&mut self, start: i64) -> usize {
        let index = self.panes.partition_point(|pane| pane.start < start);
        if self.panes[index].start != start {
            if index < self.first {
                self.first += 1;
            } else if index < self.first + self.older.len() + self.newer_count {
                self.forget_results();
            }
            self.panes.insert(index, Pane { start, content: None });
        }
        index
    }

    #[cold]
    fn remove(&mut self, index: usize) {
        self.panes.remove(index);
        self.forget_results();
        self.first = self.first.min(index);
    }

    fn forget_results(&mut self) {
        self.older.clear();
        self.newer = None;
        self.newer_count = 0;
    }

    /// What the panes of a window come to; none if they are empty. Windows are asked for in the
    /// order of time; see [`Panes::each_result_around`] for others.
    ///
    /// # Errors
    /// Returns the error of `merge`.
    pub(crate) fn slide_to(
        &mut self,
        window: TimeWindow,
        merge: &impl Fn(&mut Option<A>, A) -> Result<()>,
    ) -> Result<Option<A>> {
        while self.panes.get(self.first).is_some_and(|pane| pane.start < window.start) {
            self.leave_first(merge);
        }
        let mut next = self.first + self.older.len() + self.newer_count;
        while let Some(pane) = self.panes.get(next).filter(|pane| pane.start < window.end) {
            if let Some(content) = &pane.content {
                merge(&mut self.newer, content.clone())?;
            }
            self.newer_count += 1;
            next += 1;
        }
        let mut result = self.older.last().cloned();
        if let Some(newer) = &self.newer {
            merge(&mut result, newer.clone())?;
        }
        Ok(result)
    }

    /// Drops the panes that start before `start`.
    pub(crate) fn expire(&mut self, start: i64, merge: &impl Fn(&mut Option<A>, A) -> Result<()>) {
        while self.panes.front().is_some_and(|pane| pane.start < start) {
            if self.first == 0 {
                self.leave_first(merge);
            }
            self.panes.pop_front();
            self.first -= 1;
        }
    }

    /// Leaves the first pane out of the results.
    fn leave_first(&mut self, merge: &impl Fn(&mut Option<A>, A) -> Result<()>) {
        // An error comes again where a result is asked for.
        if self.older.is_empty() && self.flip(merge).is_err() {
            self.forget_results();
        }
        self.older.pop();
        self.first += 1;
    }

    /// Makes `older` of the panes that `newer` stands for.
    fn flip(&mut self, merge: &impl Fn(&mut Option<A>, A) -> Result<()>) -> Result<()> {
        let range = self.first..self.first + self.newer_count;
        self.newer = None;
        self.newer_count = 0;
        for pane in self.panes.range(range).rev() {
            let mut all = pane.content.clone();
            if let Some(later) = self.older.last() {
                merge(&mut all, later.clone())?;
            }
            self.older.extend(all);
        }
        Ok(())
    }

    /// What the panes of windows come to that all have the pane which starts at `start`, each of
    /// them earlier than the one before; nothing is handed out for one whose panes are empty. However
    /// many windows there are, each pane is merged a few times.
    ///
    /// # Errors
    /// Returns the error of `merge`.
    pub(crate) fn each_result_around(
        &self,
        start: i64,
        windows: impl Iterator<Item = TimeWindow>,
        merge: &impl Fn(&mut Option<A>, A) -> Result<()>,
        mut f: impl FnMut(TimeWindow, A),
    ) -> Result<()> {
        let mut windows = windows.peekable();
        let Some(latest) = windows.peek() else {
            return Ok(());
        };
        // The panes up to `start`, of which more are merged in front, and those behind it, where the
        // last element stands for all so far: there are fewer of them with each window.
        let (mut before, mut behind) = (None, Vec::<(i64, Option<A>)>::new());
        let mut first = self.panes.partition_point(|pane| pane.start <= start);
        for pane in self.panes.range(first..).take_while(|pane| pane.start < latest.end) {
            let mut all = behind.last().and_then(|(_, all)| all.clone());
            merge_content(&mut all, pane.content.as_ref(), merge)?;
            behind.push((pane.start, all));
        }
        for window in windows {
            while let Some(earlier) = first.checked_sub(1).filter(|index| window.start <= self.panes[*index].start) {
                let later = std::mem::replace(&mut before, self.panes[earlier].content.clone());
                later.map_or(Ok(()), |later| merge(&mut before, later))?;
                first = earlier;
            }
            while behind.pop_if(|(start, _)| window.end <= *start).is_some() {}
            let mut result = before.clone();
            merge_content(&mut result, behind.last().and_then(|(_, all)| all.as_ref()), merge)?;
            if let Some(result) = result {
                f(window, result);
            }
        }
        Ok(())
    }

    /// Start of the first pane at or behind `start`.
    pub(crate) fn first_at(&self, start: i64) -> Option<i64> {
        // What lies before a window is mostly dropped by the time that the next one is asked for.
        if let Some(first) = self.panes.front().filter(|pane| start <= pane.start) {
            return Some(first.start);
        }
        self.panes.get(self.panes.partition_point(|pane| pane.start < start)).map(|pane| pane.start)
    }

    /// Start of the last pane.
    pub(crate) fn last(&self) -> Option<i64> {
        self.panes.back().map(|pane| pane.start)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.panes.is_empty()
    }
}

fn merge_content<A: Clone>(
    into: &mut Option<A>,
    content: Option<&A>,
    merge: &impl Fn(&mut Option<A>, A) -> Result<()>,
) -> Result<()> {
    content.map_or(Ok(()), |content| merge(into, content.clone()))
}

impl<'v, A: Owned> Value<'v> for Panes<A> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        let pane = vec![TypeDescriptor::I64, A::descriptor(nesting.inner().inner().inner())];
        TypeDescriptor::Tuple(vec![TypeDescriptor::I64, TypeDescriptor::List(Box::new(TypeDescriptor::Tuple(pane)))])
    }

    fn read(reader: &mut Reader<'v>) -> Result<Self, DecodeError> {
        let timer = i64::read(reader)?;
        let panes = (0..reader.count()?).map(|_| {
            let start = i64::read(reader)?;
            let content = A::decode_within(reader, |content, _| content)?;
            Ok(Pane { start, content: Some(content) })
        });
        let panes = panes.collect::<Result<_, _>>()?;
        Ok(Self { timer, panes, first: 0, older: Vec::new(), newer: None, newer_count: 0 })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.timer.write(out);
        u32::try_from(self.panes.len()).expect("a value within a record is shorter than 4 GiB").write(out);
        for pane in &self.panes {
            pane.start.write(out);
            A::encode_within(pane.content.as_ref().expect("empty panes are removed at once"), out);
        }
    }

    fn weigh(&self, scratch: &mut Vec<u8>) -> usize {
        // All panes are taken to weigh as much as the last, and each is there twice: in `older`, too.
        let content = self.panes.back().and_then(|pane| pane.content.as_ref());
        let content_bytes = content.map_or(0, |content| A::weigh(content, scratch));
        size_of::<i64>() + self.panes.len() * (size_of::<i64>() + 2 * content_bytes)
    }
}

owned_record!([A: Owned] Panes<A>);

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use super::*;
    use crate::{window::assigner::AlignedWindows, window::vectors::Random};

    /// Text keeps the order in which it was merged.
    fn merge(into: &mut Option<String>, other: String) -> Result<()> {
        into.get_or_insert_default().push_str(&other);
        Ok(())
    }

    #[test]
    fn sliding_over_panes_gives_what_all_panes_of_each_window_come_to() {
        for seed in 0..10_000 {
            let random = &mut Random(seed);
            let slide = random.range(1, 6);
            let windows = AlignedWindows::new(random.range(slide, 40), slide, random.range(-5, 5));
            let mut panes = Panes::default();
            let mut model: BTreeMap<i64, String> = BTreeMap::new();
            let mut start = windows.last_start(random.range(-50, 50));
            for step in 0..60 {
                for _ in 0..random.range(0, 4) {
                    // Mostly behind what was evaluated, at times late.
                    let earliest = if random.range(0, 5) == 0 { start } else { start + windows.size };
                    let pane = windows.pane(earliest + random.range(0, 20)).start;
                    let text = format!("{step},");
                    panes.update(pane, |content| merge(content, text.clone())).expect("merges");
                    model.entry(pane).or_default().push_str(&text);
                }
                if random.range(0, 10) == 0 {
                    let mut encoded = Vec::new();
                    <Panes<String> as Record>::encode(&panes, &mut encoded);
                    panes = <Panes<String> as Record>::decode(&encoded, |panes| panes).expect("decodes");
                }
                let window = windows.window_from(start);
                let expected: String = model.range(window.start..window.end).map(|(_, text)| text.as_str()).collect();
                let result = panes.slide_to(window, &merge).expect("merges");
                assert_eq!(result, (!expected.is_empty()).then_some(expected), "seed {seed}, step {step}");
                let pane = windows.pane(start + random.range(0, windows.size - 1));
                let around: Vec<_> = windows.assign(pane.start).skip(random.range(0, 3) as usize).collect();
                let content = |window: &TimeWindow| -> String {
                    model.range(window.start..window.end).map(|(_, text)| text.as_str()).collect()
                };
                let expected: Vec<_> = around.iter().map(|window| (*window, content(window))).collect();
                let mut results = Vec::new();
                let told = panes.each_result_around(pane.start, around.into_iter(), &merge, |window, result| {
                    results.push((window, result));
                });
                told.expect("merges");
                let expected: Vec<_> = expected.into_iter().filter(|(_, text)| !text.is_empty()).collect();
                assert_eq!(results, expected, "seed {seed}, step {step}");
                start += slide * random.range(1, 3);
                let kept = start - slide * random.range(0, 2);
                panes.expire(kept, &merge);
                model = model.split_off(&kept);
                assert_eq!(panes.first_at(kept), model.keys().next().copied(), "seed {seed}, step {step}");
                assert_eq!(panes.is_empty(), model.is_empty());
            }
        }
    }

    /// Adds numbers, and counts how often.
    fn counting(merges: &Cell<i64>) -> impl Fn(&mut Option<i64>, i64) -> Result<()> {
        |into, other| {
            merges.set(merges.get() + 1);
            *into.get_or_insert(0) += other;
            Ok(())
        }
    }

    #[test]
    fn each_pane_is_merged_a_few_times_however_many_windows_it_is_part_of() {
        for overlap in [5, 60, 600] {
            let windows = AlignedWindows::new(overlap, 1, 0);
            let merges = Cell::new(0_i64);
            let merge = counting(&merges);
            let mut panes = Panes::default();
            let count = 10 * overlap;
            for time in 0..count {
                panes.update(time, |content| *content = Some(1));
                let start = time + 1 - overlap;
                let result = panes.slide_to(windows.window_from(start), &merge).expect("merges");
                assert_eq!(result, Some(overlap.min(time + 1)));
                panes.expire(start + 1, &merge);
            }
            assert!(merges.get() <= 3 * count, "{} merges for {count} windows", merges.get());
        }
    }

    #[test]
    fn a_late_record_has_each_pane_merged_a_few_times_however_many_windows_it_is_part_of() {
        for overlap in [5, 60, 600] {
            let windows = AlignedWindows::new(overlap, 1, 0);
            let merges = Cell::new(0_i64);
            let merge = counting(&merges);
            let mut panes = Panes::default();
            (0..3 * overlap).for_each(|time| panes.update(time, |content| *content = Some(1)));
            let mut results = Vec::new();
            let late = overlap + overlap / 2;
            let told = panes.each_result_around(late, windows.assign(late), &merge, |_, result| results.push(result));
            told.expect("merges");
            assert_eq!(results, vec![overlap; usize::try_from(overlap).expect("a count")]);
            assert!(merges.get() <= 5 * overlap, "{} merges for {overlap} windows", merges.get());
        }
    }

    #[test]
    fn what_cannot_be_merged_is_told_and_leaves_the_panes_as_they_are() {
        let merge = |into: &mut Option<i8>, other: i8| match into.unwrap_or(0).checked_add(other) {
            Some(sum) => {
                *into = Some(sum);
                Ok(())
            }
            None => Err(crate::Error::new("too large")),
        };
        let windows = AlignedWindows::new(3, 1, 0);
        let mut panes = Panes::default();
        for (time, content) in (0..).zip([1, 100, 2, 100, 3, 1]) {
            panes.update(time, |pane| *pane = Some(content));
        }
        let results: Vec<_> = (-2..6)
            .map(|start| {
                let result = panes.slide_to(windows.window_from(start), &merge);
                panes.expire(start + 1, &merge);
                result.ok().flatten()
            })
            .collect();
        assert_eq!(results, [Some(1), Some(101), Some(103), None, Some(105), Some(104), Some(4), Some(1)]);
        assert!(panes.is_empty());
    }

    #[test]
    fn a_failed_update_leaves_no_empty_pane() {
        let mut panes = Panes::default();
        panes.update(0, |content| *content = Some(1));
        panes.update(1, |_| ());
        assert_eq!(panes.last(), Some(0));
    }
}
