import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.common.serialization.BulkWriter;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.FSDataOutputStream;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;

/** Rows of comma-separated values, formatted into a buffer of bytes and written into files. */
final class Rows {
    private Rows() {}

    /** Formats a record into a row. */
    interface Formatter<T> extends Serializable {
        void format(T record, Row row);
    }

    /** A buffer of text; text is ASCII. */
    static final class Row {
        private byte[] bytes = new byte[256];
        private int length;

        Row number(long value) {
            ensure(20);
            if (value < 0) {
                return text(Long.toString(value));
            }
            int digits = 1;
            for (long rest = value; rest >= 10; rest /= 10) {
                digits++;
            }
            for (int index = length + digits - 1; index >= length; index--) {
                bytes[index] = (byte) ('0' + value % 10);
                value /= 10;
            }
            length += digits;
            return this;
        }

        Row text(String text) {
            ensure(text.length());
            for (int index = 0; index < text.length(); index++) {
                bytes[length++] = (byte) text.charAt(index);
            }
            return this;
        }

        Row separator() {
            ensure(1);
            bytes[length++] = ',';
            return this;
        }

        void end() {
            ensure(1);
            bytes[length++] = '\n';
        }

        private void ensure(int more) {
            if (bytes.length - length < more) {
                bytes = java.util.Arrays.copyOf(bytes, Math.max(2 * bytes.length, length + more));
            }
        }
    }

    /** Writes rows into one file per subtask, of which nothing is left after a failure. */
    static final class RowSink<T> implements Sink<T> {
        private final String directory;
        private final Formatter<T> formatter;

        RowSink(Path directory, Formatter<T> formatter) {
            this.directory = directory.toString();
            this.formatter = formatter;
        }

        @Override
        public SinkWriter<T> createWriter(WriterInitContext context) throws IOException {
            Path file = Path.of(directory, "part-" + context.getTaskInfo().getIndexOfThisSubtask());
            OutputStream output = new BufferedOutputStream(Files.newOutputStream(file), 1 << 16);
            Row row = new Row();
            return new SinkWriter<>() {
                @Override
                public void write(T record, Context writeContext) throws IOException {
                    row.length = 0;
                    formatter.format(record, row);
                    output.write(row.bytes, 0, row.length);
                }

                @Override
                public void flush(boolean endOfInput) throws IOException {
                    output.flush();
                }

                @Override
                public void close() throws IOException {
                    output.close();
                }
            };
        }
    }

    /** Flink's own sink of exactly once: rows of a file become visible when the checkpoint that closed it is complete. */
    static <T> Sink<T> committedFiles(Path directory, Formatter<T> formatter) {
        return FileSink.forBulkFormat(new org.apache.flink.core.fs.Path(directory.toUri()), new RowWriters<>(formatter))
                .withBucketAssigner(new BasePathBucketAssigner<>())
                .build();
    }

    /** Writes the rows of one file of Flink's sink through a buffer, which its row formats do not have. */
    private static final class RowWriters<T> implements BulkWriter.Factory<T> {
        private final Formatter<T> formatter;

        RowWriters(Formatter<T> formatter) {
            this.formatter = formatter;
        }

        @Override
        public BulkWriter<T> create(FSDataOutputStream file) {
            OutputStream output = new BufferedOutputStream(file, 1 << 16);
            Row row = new Row();
            return new BulkWriter<>() {
                @Override
                public void addElement(T record) throws IOException {
                    row.length = 0;
                    formatter.format(record, row);
                    output.write(row.bytes, 0, row.length);
                }

                @Override
                public void flush() throws IOException {
                    output.flush();
                }

                @Override
                public void finish() throws IOException {
                    output.flush();
                }
            };
        }
    }
}
