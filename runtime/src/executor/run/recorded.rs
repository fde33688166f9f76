//! Runs that are recorded in a trace.

use super::{
    super::{binding::Binding, program::Program},
    Done, Executor, Stop, Watch, is_announced,
    observer::Recording,
};
use crate::trace::Trace;
use std::sync::Arc;

/// A trace, and the threshold that [`Executor::announced_bytes`] has without it.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) trace: Arc<Trace>,
    announced_bytes: Option<usize>,
}

impl Executor {
    /// Returns the executor with a trace that its runs are recorded in.
    pub(crate) fn with_trace(self, trace: Option<Arc<Trace>>) -> Executor {
        let Some(trace) = trace else { return self };
        let announced_bytes = self.announced_bytes;
        Executor { announced_bytes: Some(0), trace: Some(Recorded { trace, announced_bytes }), ..self }
    }

    /// Runs a program and records its steps in the trace. Not marked as cold: the code would be slower.
    #[inline(never)]
    pub(super) fn run_recorded(
        &mut self,
        program: &Program,
        bindings: &[Binding<'_>],
        watch: &mut dyn Watch,
    ) -> Result<(), Stop> {
        // Taken for the run, which is cheaper than another reference. After a panic no run follows.
        let Some(recorded) = self.trace.take() else { return Ok(()) };
        watch.observe_rails();
        let mut recording = Recording::begin(&recorded.trace, program, bindings, watch.calls());
        let observer = &mut recording;
        let ran = if bindings.iter().any(|binding| is_announced(binding, &recorded.announced_bytes)) {
            self.run_to_completion::<true, true, _>(program, bindings, watch, observer, None)
        } else if let [binding] = bindings {
            self.run_one(program, (binding, Done::default()), watch, observer)
        } else {
            self.run_to_completion::<false, true, _>(program, bindings, watch, observer, None)
        };
        recording.end(program, bindings, ran.is_ok());
        self.trace = Some(recorded);
        ran
    }
}
