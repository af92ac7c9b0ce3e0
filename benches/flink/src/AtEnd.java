import org.apache.flink.streaming.api.windowing.triggers.Trigger;
import org.apache.flink.streaming.api.windowing.triggers.TriggerResult;
import org.apache.flink.streaming.api.windowing.windows.GlobalWindow;

/**
 * Evaluates the only window at the last watermark. Flink's own trigger for the end of the stream
 * has the input sorted by key first, and a job that does so takes no checkpoints.
 */
final class AtEnd<T> extends Trigger<T, GlobalWindow> {
    @Override
    public TriggerResult onElement(T element, long timestamp, GlobalWindow window, TriggerContext context) {
        context.registerEventTimeTimer(window.maxTimestamp());
        return TriggerResult.CONTINUE;
    }

    @Override
    public TriggerResult onEventTime(long time, GlobalWindow window, TriggerContext context) {
        return TriggerResult.FIRE_AND_PURGE;
    }

    @Override
    public TriggerResult onProcessingTime(long time, GlobalWindow window, TriggerContext context) {
        return TriggerResult.CONTINUE;
    }

    @Override
    public void clear(GlobalWindow window, TriggerContext context) {
        context.deleteEventTimeTimer(window.maxTimestamp());
    }
}
