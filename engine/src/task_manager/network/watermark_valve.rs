//! Combines the watermarks of the channels of an input, and those of the inputs
//! of an operator.
//!
//! Source: Flink's `StatusWatermarkValve` and `IndexedCombinedWatermarkStatus`.

use crate::base::{clock::Timestamp, stream_element::WatermarkStatus};

/// What a valve lets through.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValveOutput {
    /// The watermark over all channels rose.
    Watermark(Timestamp),
    /// All channels became idle, or one became active again.
    Status(WatermarkStatus),
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    watermark: Timestamp,
    status: WatermarkStatus,
    /// False while an active channel has yet to catch up with the output.
    aligned: bool,
}

/// Combines the watermarks of the channels of one input.
///
/// # Invariants
/// The watermark that comes out never falls.
#[derive(Debug)]
pub struct StatusWatermarkValve {
    channels: Vec<Channel>,
    output: Timestamp,
    status: WatermarkStatus,
}

impl StatusWatermarkValve {
    /// A valve over so many channels, all active.
    pub fn new(channels: usize) -> Self {
        let channel = Channel { watermark: Timestamp::MIN, status: WatermarkStatus::Active, aligned: true };
        Self { channels: vec![channel; channels], output: Timestamp::MIN, status: WatermarkStatus::Active }
    }

    /// Takes a watermark of a channel.
    pub fn input_watermark(&mut self, channel: usize, watermark: Timestamp) -> Option<ValveOutput> {
        let entry = &mut self.channels[channel];
        let idle = self.status == WatermarkStatus::Idle || entry.status == WatermarkStatus::Idle;
        if idle || watermark <= entry.watermark {
            return None;
        }
        entry.watermark = watermark;
        entry.aligned |= self.output <= watermark;
        self.raise_to_minimum()
    }

    /// Takes the status of a channel. At most a watermark and a status come out, in this order.
    pub fn input_status(&mut self, channel: usize, status: WatermarkStatus) -> [Option<ValveOutput>; 2] {
        let entry = &mut self.channels[channel];
        if entry.status == status {
            return [None, None];
        }
        entry.status = status;
        match status {
            WatermarkStatus::Idle => {
                entry.aligned = false;
                let held_the_output = entry.watermark == self.output;
                if self.channels.iter().any(|channel| channel.status == WatermarkStatus::Active) {
                    return [if held_the_output { self.raise_to_minimum() } else { None }, None];
                }
                let maximum = self.channels.iter().map(|channel| channel.watermark).max();
                let raised = maximum.filter(|_| held_the_output).and_then(|maximum| self.raise(maximum));
                [raised, self.change_status(status)]
            }
            WatermarkStatus::Active => {
                entry.aligned = self.output <= entry.watermark;
                [None, self.change_status(status)]
            }
        }
    }

    /// Channel and watermark of the least among the channels that count, and the greatest
    /// watermark among them; none if all are idle. One that has yet to catch up does not count.
    pub fn least_and_greatest(&self) -> Option<((usize, Timestamp), Timestamp)> {
        let aligned = self.channels.iter().enumerate().filter(|(_, channel)| channel.aligned);
        let watermarks = aligned.map(|(index, channel)| (index, channel.watermark));
        let least = watermarks.clone().min_by_key(|(_, watermark)| *watermark)?;
        Some((least, watermarks.map(|(_, watermark)| watermark).max()?))
    }

    fn raise_to_minimum(&mut self) -> Option<ValveOutput> {
        let aligned = self.channels.iter().filter(|channel| channel.aligned);
        let minimum = aligned.map(|channel| channel.watermark).min()?;
        self.raise(minimum)
    }

    fn raise(&mut self, watermark: Timestamp) -> Option<ValveOutput> {
        if watermark <= self.output {
            return None;
        }
        self.output = watermark;
        Some(ValveOutput::Watermark(watermark))
    }

    fn change_status(&mut self, status: WatermarkStatus) -> Option<ValveOutput> {
        if self.status == status {
            return None;
        }
        self.status = status;
        Some(ValveOutput::Status(status))
    }
}

/// Combines the watermarks of the inputs of one operator: the least of those
/// that are not idle.
#[derive(Debug)]
pub struct CombinedWatermark {
    inputs: Vec<(Timestamp, WatermarkStatus)>,
    output: Timestamp,
}

impl CombinedWatermark {
    /// Over so many inputs, all active.
    pub fn new(inputs: usize) -> Self {
        Self { inputs: vec![(Timestamp::MIN, WatermarkStatus::Active); inputs], output: Timestamp::MIN }
    }

    /// The watermark stood here before: nothing at or below comes out again.
    pub fn restore(&mut self, watermark: Timestamp) {
        self.output = self.output.max(watermark);
    }

    /// Takes what an input's valve let through. At most a watermark and a status
    /// come out, in this order.
    pub fn update(&mut self, input: usize, update: ValveOutput) -> [Option<ValveOutput>; 2] {
        let was_idle = self.is_idle();
        let entry = &mut self.inputs[input];
        match update {
            ValveOutput::Watermark(watermark) => entry.0 = entry.0.max(watermark),
            ValveOutput::Status(status) => entry.1 = status,
        }
        let active = self.inputs.iter().filter(|(_, status)| *status == WatermarkStatus::Active);
        let minimum = active.map(|(watermark, _)| *watermark).min();
        let raised = minimum.filter(|minimum| self.output < *minimum);
        if let Some(raised) = raised {
            self.output = raised;
        }
        let status = match (was_idle, self.is_idle()) {
            (false, true) => Some(ValveOutput::Status(WatermarkStatus::Idle)),
            (true, false) => Some(ValveOutput::Status(WatermarkStatus::Active)),
            (true, true) | (false, false) => None,
        };
        [raised.map(ValveOutput::Watermark), status]
    }

    /// The watermark over all inputs.
    pub fn watermark(&self) -> Timestamp {
        self.output
    }

    fn is_idle(&self) -> bool {
        self.inputs.iter().all(|(_, status)| *status == WatermarkStatus::Idle)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

    use super::*;

    const CASES: u64 = 10_000;

    /// What came into one channel or input.
    type Input = (usize, ValveOutput);

    /// Keeps all that came in, and finds out what each channel is anew each time.
    struct Model {
        channels: usize,
        inputs: Vec<Input>,
        output: Timestamp,
    }

    impl Model {
        fn status(&self, channel: usize) -> WatermarkStatus {
            let of_channel = self.inputs.iter().rev().filter(|(of, _)| *of == channel);
            let mut statuses = of_channel.filter_map(|(_, input)| match input {
                ValveOutput::Status(status) => Some(*status),
                ValveOutput::Watermark(_) => None,
            });
            statuses.next().unwrap_or(WatermarkStatus::Active)
        }

        /// The greatest watermark of a channel.
        fn watermark(&self, channel: usize) -> Timestamp {
            let of_channel = self.inputs.iter().filter(|(of, _)| *of == channel);
            let watermarks = of_channel.filter_map(|(_, input)| match input {
                ValveOutput::Watermark(watermark) => Some(*watermark),
                ValveOutput::Status(_) => None,
            });
            watermarks.max().unwrap_or(Timestamp::MIN)
        }

        fn active(&self) -> Vec<usize> {
            (0..self.channels).filter(|channel| self.status(*channel) == WatermarkStatus::Active).collect()
        }

        /// Watermarks of the active channels that are not behind the output.
        fn caught_up(&self) -> Vec<Timestamp> {
            let watermarks = self.active().into_iter().map(|channel| self.watermark(channel));
            watermarks.filter(|watermark| self.output <= *watermark).collect()
        }

        fn raise(&mut self, watermark: Option<Timestamp>) -> Option<ValveOutput> {
            let risen = watermark.filter(|watermark| self.output < *watermark)?;
            self.output = risen;
            Some(ValveOutput::Watermark(risen))
        }

        /// As [`StatusWatermarkValve`].
        fn valve(&mut self, (channel, input): Input) -> Vec<ValveOutput> {
            let was_idle = self.active().is_empty();
            let mut raised = None;
            match input {
                ValveOutput::Watermark(watermark) => {
                    // An idle channel has no watermark to tell.
                    if self.status(channel) == WatermarkStatus::Active && self.watermark(channel) < watermark {
                        self.inputs.push((channel, input));
                        raised = self.raise(self.caught_up().into_iter().min());
                    }
                }
                ValveOutput::Status(status) => {
                    let becomes_idle = status == WatermarkStatus::Idle && self.status(channel) != status;
                    self.inputs.push((channel, input));
                    if becomes_idle && self.watermark(channel) == self.output {
                        let greatest = (0..self.channels).map(|channel| self.watermark(channel)).max();
                        let least = self.caught_up().into_iter().min();
                        raised = self.raise(if self.active().is_empty() { greatest } else { least });
                    }
                }
            }
            raised.into_iter().chain(self.change(was_idle)).collect()
        }

        /// As [`CombinedWatermark`].
        fn combined(&mut self, input: Input) -> Vec<ValveOutput> {
            let was_idle = self.active().is_empty();
            self.inputs.push(input);
            let least = self.active().into_iter().map(|channel| self.watermark(channel)).min();
            self.raise(least).into_iter().chain(self.change(was_idle)).collect()
        }

        fn change(&self, was_idle: bool) -> Option<ValveOutput> {
            match (was_idle, self.active().is_empty()) {
                (false, true) => Some(ValveOutput::Status(WatermarkStatus::Idle)),
                (true, false) => Some(ValveOutput::Status(WatermarkStatus::Active)),
                _ => None,
            }
        }
    }

    /// A random run over so many channels, few enough watermarks that some are equal.
    fn run(random: &mut SmallRng, channels: usize) -> Vec<Input> {
        let mut progress = 0;
        let input = |_| {
            progress += random.random_range(0..3);
            let input = match random.random_range(0..10) {
                0..2 => ValveOutput::Status(WatermarkStatus::Idle),
                2..4 => ValveOutput::Status(WatermarkStatus::Active),
                _ => ValveOutput::Watermark(Timestamp(progress - random.random_range(0..8))),
            };
            (random.random_range(0..channels), input)
        };
        (0..40).map(input).collect()
    }

    fn cases(mut check: impl FnMut(u64, Model, Vec<Input>)) {
        for seed in 0..CASES {
            let random = &mut SmallRng::seed_from_u64(seed);
            let channels = random.random_range(1..5);
            let inputs = run(random, channels);
            check(seed, Model { channels, inputs: Vec::new(), output: Timestamp::MIN }, inputs);
        }
    }

    #[test]
    fn the_valve_does_what_a_model_without_memory_of_its_own_does() {
        let (mut watermarks, mut statuses) = (0_u64, 0_u64);
        cases(|seed, mut model, inputs| {
            let mut valve = StatusWatermarkValve::new(model.channels);
            for (step, (channel, input)) in inputs.into_iter().enumerate() {
                let got = match input {
                    ValveOutput::Watermark(watermark) => [valve.input_watermark(channel, watermark), None],
                    ValveOutput::Status(status) => valve.input_status(channel, status),
                };
                let got: Vec<_> = got.into_iter().flatten().collect();
                assert_eq!(got, model.valve((channel, input)), "seed {seed}, step {step}");
                for output in got {
                    match output {
                        ValveOutput::Watermark(_) => watermarks += 1,
                        ValveOutput::Status(_) => statuses += 1,
                    }
                }
                let span = valve.least_and_greatest().map(|((_, least), greatest)| (least, greatest));
                let caught_up = model.caught_up();
                let expected = caught_up.iter().min().zip(caught_up.iter().max()).map(|(least, most)| (*least, *most));
                assert_eq!(span, expected, "seed {seed}, step {step}");
            }
        });
        assert!(CASES < watermarks && CASES < statuses, "{watermarks} watermarks, {statuses} statuses");
    }

    #[test]
    fn inputs_are_combined_as_a_model_without_memory_of_its_own_does() {
        cases(|seed, mut model, inputs| {
            let mut combined = CombinedWatermark::new(model.channels);
            for (step, (input, update)) in inputs.into_iter().enumerate() {
                let got: Vec<_> = combined.update(input, update).into_iter().flatten().collect();
                assert_eq!(got, model.combined((input, update)), "seed {seed}, step {step}");
                assert_eq!(combined.watermark(), model.output, "seed {seed}, step {step}");
            }
        });
    }

    /// Traces of Flink's valve: what goes into which channel, and what comes out.
    const TRACES: &str = include_str!("watermark_valve.json");

    fn printed(output: ValveOutput) -> serde_json::Value {
        match output {
            ValveOutput::Watermark(Timestamp(watermark)) => serde_json::json!(["WM", watermark]),
            ValveOutput::Status(WatermarkStatus::Idle) => serde_json::json!(["IDLE"]),
            ValveOutput::Status(WatermarkStatus::Active) => serde_json::json!(["ACTIVE"]),
        }
    }

    #[test]
    fn valve_repeats_flinks_traces() {
        let file: serde_json::Value = serde_json::from_str(TRACES).unwrap();
        let traces = file["valve"].as_array().unwrap();
        assert_eq!(traces.len(), 9);
        for trace in traces {
            let mut valve = StatusWatermarkValve::new(usize::try_from(trace["channels"].as_u64().unwrap()).unwrap());
            for (index, step) in trace["steps"].as_array().unwrap().iter().enumerate() {
                let channel = usize::try_from(step["channel"].as_u64().unwrap()).unwrap();
                let outputs = match &step["in"] {
                    serde_json::Value::String(status) if status == "IDLE" => {
                        valve.input_status(channel, WatermarkStatus::Idle)
                    }
                    serde_json::Value::String(_) => valve.input_status(channel, WatermarkStatus::Active),
                    watermark => [valve.input_watermark(channel, Timestamp(watermark.as_i64().unwrap())), None],
                };
                let outputs: Vec<_> = outputs.into_iter().flatten().map(printed).collect();
                assert_eq!(serde_json::Value::Array(outputs), step["out"], "{}, step {index}", trace["name"]);
            }
        }
    }

    #[test]
    fn the_channel_that_holds_back_is_the_least_of_those_that_are_active() {
        let mut valve = StatusWatermarkValve::new(3);
        assert_eq!(valve.least_and_greatest(), Some(((0, Timestamp::MIN), Timestamp::MIN)));
        for (channel, watermark) in [(0, 5), (1, 3), (2, 9)] {
            valve.input_watermark(channel, Timestamp(watermark));
        }
        assert_eq!(valve.least_and_greatest(), Some(((1, Timestamp(3)), Timestamp(9))));
        valve.input_status(1, WatermarkStatus::Idle);
        assert_eq!(valve.least_and_greatest(), Some(((0, Timestamp(5)), Timestamp(9))));
        valve.input_status(0, WatermarkStatus::Idle);
        valve.input_status(2, WatermarkStatus::Idle);
        assert_eq!(valve.least_and_greatest(), None);
    }

    #[test]
    fn inputs_are_combined_by_their_minimum_without_idle_ones() {
        use ValveOutput::{Status, Watermark};
        let mut combined = CombinedWatermark::new(2);
        let steps = [
            (0, Watermark(Timestamp(5)), [None, None]),
            (1, Watermark(Timestamp(3)), [Some(Watermark(Timestamp(3))), None]),
            (1, Status(WatermarkStatus::Idle), [Some(Watermark(Timestamp(5))), None]),
            (0, Status(WatermarkStatus::Idle), [None, Some(Status(WatermarkStatus::Idle))]),
            (1, Status(WatermarkStatus::Active), [None, Some(Status(WatermarkStatus::Active))]),
            (1, Watermark(Timestamp(4)), [None, None]),
            (1, Watermark(Timestamp::MAX), [Some(Watermark(Timestamp::MAX)), None]),
        ];
        for (index, (input, update, expected)) in steps.into_iter().enumerate() {
            assert_eq!(combined.update(input, update), expected, "step {index}");
        }
    }
}
