import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.SimpleStreamFormat;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonFactory;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonParser;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonToken;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.util.Collector;

/**
 * The peer's side of the comparison: the queries of the Nexmark and word count plugins on
 * Apache Flink's DataStream API, in one JVM, written to be as fast as its API allows: lines are
 * parsed as bytes without a String each, only the fields used are decoded, objects are reused,
 * rows are formatted into a byte buffer.
 *
 * <p>Arguments: query, parallelism, output directory, input files.
 */
public final class Peer {
    /** A bid with the fields that the queries use. */
    public static final class Bid {
        public long auction;
        public long bidder;
        public long price;
        public long dateTime;
    }

    public static void main(String[] args) throws Exception {
        String query = args[0];
        int parallelism = Integer.parseInt(args[1]);
        Path output = Path.of(args[2]);
        org.apache.flink.core.fs.Path[] inputs = new org.apache.flink.core.fs.Path[args.length - 3];
        for (int index = 3; index < args.length; index++) {
            inputs[index - 3] = new org.apache.flink.core.fs.Path(Path.of(args[index]).toAbsolutePath().toUri());
        }
        Files.createDirectories(output);

        Configuration configuration = new Configuration();
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);
        env.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        env.getConfig().enableObjectReuse();
        switch (query) {
            case "q0" -> bids(env, inputs).sinkTo(new RowSink<>(output.toString(), (bid, row) -> {
                row.number(bid.auction).separator().number(bid.bidder).separator();
                row.number(bid.price).separator().number(bid.dateTime).end();
            }));
            case "q1" -> bids(env, inputs)
                    .map(bid -> {
                        bid.price = bid.price * 908 / 1000;
                        return bid;
                    })
                    .returns(Bid.class)
                    .sinkTo(new RowSink<>(output.toString(), (bid, row) -> {
                        row.number(bid.auction).separator().number(bid.bidder).separator();
                        row.number(bid.price).separator().number(bid.dateTime).end();
                    }));
            case "q2" -> bids(env, inputs)
                    .filter((FilterFunction<Bid>) bid -> bid.auction % 123 == 0)
                    .sinkTo(new RowSink<>(output.toString(), (bid, row) ->
                            row.number(bid.auction).separator().number(bid.price).end()));
            case "word-count" -> wordCount(env, inputs, output);
            default -> throw new IllegalArgumentException("unknown query " + query);
        }
        env.execute(query);
    }

    private static DataStream<Bid> bids(StreamExecutionEnvironment env, org.apache.flink.core.fs.Path[] inputs) {
        FileSource<Bid> source = FileSource.forRecordStreamFormat(new BidFormat(), inputs).build();
        return env.fromSource(source, WatermarkStrategy.noWatermarks(), "bids");
    }

    private static void wordCount(
            StreamExecutionEnvironment env, org.apache.flink.core.fs.Path[] inputs, Path output) {
        FileSource<byte[]> source = FileSource.forRecordStreamFormat(new LineFormat(), inputs).build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "lines")
                .flatMap(new Words())
                .returns(Types.STRING)
                .keyBy(word -> word)
                .window(GlobalWindows.createWithEndOfStreamTrigger())
                .aggregate(new Count())
                .returns(Types.TUPLE(Types.STRING, Types.LONG))
                .sinkTo(new RowSink<>(output.toString(), (count, row) ->
                        row.text(count.f0).separator().number(count.f1).end()));
    }

    /** Splits lines into lower-case words of ASCII letters, digits and underscores. */
    private static final class Words implements FlatMapFunction<byte[], String> {
        @Override
        public void flatMap(byte[] line, Collector<String> out) {
            int start = -1;
            for (int index = 0; index <= line.length; index++) {
                int letter = index < line.length ? line[index] : ' ';
                if (letter >= 'A' && letter <= 'Z') {
                    line[index] = (byte) (letter | 0x20);
                    letter = line[index];
                }
                boolean inWord = (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '_';
                if (inWord && start < 0) {
                    start = index;
                } else if (!inWord && start >= 0) {
                    out.collect(new String(line, start, index - start, StandardCharsets.ISO_8859_1));
                    start = -1;
                }
            }
        }
    }

    /** Counts; the word is remembered for the result. */
    private static final class Count implements AggregateFunction<String, Tuple2<String, Long>, Tuple2<String, Long>> {
        @Override
        public Tuple2<String, Long> createAccumulator() {
            return Tuple2.of(null, 0L);
        }

        @Override
        public Tuple2<String, Long> add(String word, Tuple2<String, Long> count) {
            count.f0 = word;
            count.f1++;
            return count;
        }

        @Override
        public Tuple2<String, Long> getResult(Tuple2<String, Long> count) {
            return count;
        }

        @Override
        public Tuple2<String, Long> merge(Tuple2<String, Long> left, Tuple2<String, Long> right) {
            left.f1 += right.f1;
            return left;
        }
    }

    /** Lines of a stream as ranges of one buffer. */
    private static final class Lines {
        private final FSDataInputStream input;
        private byte[] buffer = new byte[1 << 16];
        private int end;
        private int next;
        int start;
        int length;

        Lines(FSDataInputStream input) {
            this.input = input;
        }

        boolean advance() throws IOException {
            int scanned = next;
            while (true) {
                for (; scanned < end; scanned++) {
                    if (buffer[scanned] == '\n') {
                        start = next;
                        length = scanned - next;
                        next = scanned + 1;
                        return true;
                    }
                }
                if (next > 0) {
                    System.arraycopy(buffer, next, buffer, 0, end - next);
                    end -= next;
                    scanned -= next;
                    next = 0;
                }
                if (end == buffer.length) {
                    buffer = java.util.Arrays.copyOf(buffer, 2 * buffer.length);
                }
                int read = input.read(buffer, end, buffer.length - end);
                if (read < 0) {
                    start = 0;
                    length = end;
                    next = end;
                    return length > 0;
                }
                end += read;
            }
        }
    }

    /** Bids of a file of Nexmark events; other events are passed over. */
    private static final class BidFormat extends SimpleStreamFormat<Bid> {
        private static final JsonFactory JSON = new JsonFactory();

        @Override
        public Reader<Bid> createReader(org.apache.flink.configuration.Configuration configuration, FSDataInputStream stream) {
            Lines lines = new Lines(stream);
            return new StreamFormat.Reader<>() {
                @Override
                public Bid read() throws IOException {
                    while (lines.advance()) {
                        Bid bid = parse(lines.buffer, lines.start, lines.length);
                        if (bid != null) {
                            return bid;
                        }
                    }
                    return null;
                }

                @Override
                public void close() throws IOException {
                    stream.close();
                }
            };
        }

        private static Bid parse(byte[] buffer, int start, int length) throws IOException {
            try (JsonParser parser = JSON.createParser(buffer, start, length)) {
                parser.nextToken();
                if (!"Bid".equals(parser.nextFieldName())) {
                    return null;
                }
                Bid bid = new Bid();
                parser.nextToken();
                String name;
                while ((name = parser.nextFieldName()) != null) {
                    switch (name) {
                        case "auction" -> bid.auction = parser.nextLongValue(0);
                        case "bidder" -> bid.bidder = parser.nextLongValue(0);
                        case "price" -> bid.price = parser.nextLongValue(0);
                        case "date_time" -> bid.dateTime = parser.nextLongValue(0);
                        default -> {
                            JsonToken token = parser.nextToken();
                            if (token.isStructStart()) {
                                parser.skipChildren();
                            }
                        }
                    }
                }
                return bid;
            }
        }

        @Override
        public TypeInformation<Bid> getProducedType() {
            return TypeInformation.of(Bid.class);
        }
    }

    /** Lines of a file as bytes. */
    private static final class LineFormat extends SimpleStreamFormat<byte[]> {
        @Override
        public Reader<byte[]> createReader(org.apache.flink.configuration.Configuration configuration, FSDataInputStream stream) {
            Lines lines = new Lines(stream);
            return new StreamFormat.Reader<>() {
                @Override
                public byte[] read() throws IOException {
                    if (!lines.advance()) {
                        return null;
                    }
                    return java.util.Arrays.copyOfRange(lines.buffer, lines.start, lines.start + lines.length);
                }

                @Override
                public void close() throws IOException {
                    stream.close();
                }
            };
        }

        @Override
        public TypeInformation<byte[]> getProducedType() {
            return TypeInformation.of(byte[].class);
        }
    }

    /** Formats a record into a row. */
    private interface Formatter<T> extends Serializable {
        void format(T record, Row row);
    }

    /** A buffer of text. */
    private static final class Row {
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

    /** Writes rows into one file per subtask. */
    private static final class RowSink<T> implements Sink<T> {
        private final String directory;
        private final Formatter<T> formatter;

        RowSink(String directory, Formatter<T> formatter) {
            this.directory = directory;
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
}
