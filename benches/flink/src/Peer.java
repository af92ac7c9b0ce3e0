import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.function.ToLongFunction;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.PipelineOptions;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.windowing.assigners.GlobalWindows;
import org.apache.flink.util.Collector;

/**
 * The peer's side of the comparison: the queries of the Nexmark and word count plugins on
 * Apache Flink's DataStream API, in one JVM, written to be as fast as its API allows: lines are
 * parsed as bytes without a String each, only the fields used are decoded, only the records used
 * are sent, objects are reused, state is on the heap, rows are formatted into a byte buffer.
 *
 * <p>Arguments: query, parallelism, output directory, input files.
 */
public final class Peer {
    private static final TypeInformation<Events.Bid> BID = TypeInformation.of(Events.Bid.class);

    private final StreamExecutionEnvironment env;
    private final org.apache.flink.core.fs.Path[] inputs;
    private final Path output;

    private Peer(StreamExecutionEnvironment env, org.apache.flink.core.fs.Path[] inputs, Path output) {
        this.env = env;
        this.inputs = inputs;
        this.output = output;
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
        configuration.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        // Refuses types that would go through Kryo.
        configuration.set(PipelineOptions.GENERIC_TYPES, false);
        Long checkpoints = Long.getLong("checkpoints");
        if (checkpoints != null) {
            configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(checkpoints));
            configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, System.getProperty("checkpoints.dir"));
        }
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);
        env.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        env.getConfig().enableObjectReuse();
        new Peer(env, inputs, output).build(query);
        env.execute(query);
    }

    private void build(String query) {
        switch (query) {
            case "q0" -> writeBids(bids());
            case "q1" -> writeBids(bids()
                    .map(bid -> {
                        bid.price = bid.price * 908 / 1000;
                        return bid;
                    })
                    .returns(BID));
            case "q2" -> write(
                    bids().filter((FilterFunction<Events.Bid>) bid -> bid.auction % 123 == 0),
                    (bid, row) -> row.number(bid.auction).separator().number(bid.price).end());
            case "q3" -> sellersAuctions();
            case "q4" -> averagePrices();
            case "q5" -> writeCounts(timedBids()
                    .keyBy(bid -> bid.auction, Types.LONG)
                    .process(new Bids.CountInSlidingWindows())
                    .keyBy(count -> count.windowEnd, Types.LONG)
                    .process(new Bids.MostBids()));
            case "q5-window" -> writeCounts(Windows.mostBids(timedBids()));
            case "q7" -> writeBids(timedBids()
                    .keyBy(bid -> bid.price % Bids.HighestBids.PARTS, Types.LONG)
                    .process(new Bids.HighestBids())
                    .keyBy(Bids.HighestBids::windowOf, Types.LONG)
                    .process(new Bids.HighestBids()));
            case "q7-window" -> writeBids(Windows.highestBids(timedBids()));
            case "q8" -> writeSellers(
                    timedPeopleAndAuctions().keyBy(event -> event.person, Types.LONG).process(new Joins.NewSellers()));
            case "q8-window" -> writeSellers(Windows.newSellers(timedPeopleAndAuctions()));
            case "q9" -> write(winners(Events::namedAuctionOrBid), (winner, row) -> {
                Events.AuctionOrBid auction = winner.auction;
                row.number(auction.bid.auction).separator().text(auction.itemName).separator();
                row.number(auction.category).separator().number(auction.seller).separator();
                row.number(auction.bid.dateTime).separator().number(auction.expires).separator();
                row.number(winner.best.bidder).separator().number(winner.best.price).separator();
                row.number(winner.best.dateTime).end();
            });
            case "q11" -> writeSessions(
                    timedBids().keyBy(bid -> bid.bidder, Types.LONG).process(new Bids.Sessions()));
            case "q11-window" -> writeSessions(Windows.sessions(timedBids()));
            case "q15" -> dailyDistinct();
            case "q17" -> write(
                    bids().keyBy(
                                    bid -> Tuple2.of(bid.auction, Bids.Statistics.dayOf(bid)),
                                    Types.TUPLE(Types.LONG, Types.LONG))
                            .process(new Bids.AuctionStatistics()),
                    (auction, row) -> {
                        row.number(auction.auction).separator().number(auction.day).separator();
                        row.number(auction.bids).separator().number(auction.low).separator();
                        row.number(auction.least).separator().number(auction.greatest).separator();
                        row.number(auction.sum / auction.bids).separator().number(auction.sum).end();
                    });
            case "q18" -> writeBids(bids()
                    .keyBy(bid -> Tuple2.of(bid.bidder, bid.auction), Types.TUPLE(Types.LONG, Types.LONG))
                    .process(new Bids.LastBids()));
            case "q19" -> write(
                    bids().keyBy(bid -> bid.auction, Types.LONG)
                            .process(new Bids.TopTen())
                            .returns(Bids.TopTen.rowType()),
                    (ranked, row) -> {
                        Events.Bid bid = ranked.f0;
                        row.number(bid.auction).separator().number(bid.bidder).separator().number(bid.price);
                        row.separator().number(bid.dateTime).separator().number(ranked.f1).end();
                    });
            case "q20" -> write(
                    events(Events.AuctionOrBid.class, Events::auctionOrBid)
                            .keyBy(event -> event.bid.auction, Types.LONG)
                            .process(new Joins.BidsWithAuction(10))
                            .returns(Joins.BidsWithAuction.rowType()),
                    (joined, row) -> {
                        Events.Bid bid = joined.f0;
                        row.number(bid.auction).separator().number(bid.bidder).separator().number(bid.price);
                        row.separator().number(bid.dateTime).separator().number(joined.f1.f0).separator();
                        row.number(joined.f1.f1).end();
                    });
            case "word-count" -> wordCount();
            default -> throw new IllegalArgumentException("unknown query " + query);
        }
    }

    /** Events in the order of the files; the last watermark comes at their end, and no other. */
    private <T> DataStream<T> events(Class<T> type, Events.Decoder<T> decoder) {
        return source(type, decoder, WatermarkStrategy.noWatermarks());
    }

    /** Events with watermarks that allow for four seconds of disorder. */
    private <T> DataStream<T> timedEvents(Class<T> type, Events.Decoder<T> decoder, Time<T> time) {
        return source(type, decoder, WatermarkStrategy.<T>forBoundedOutOfOrderness(Duration.ofSeconds(4))
                .withTimestampAssigner((event, previous) -> time.applyAsLong(event)));
    }

    private interface Time<T> extends ToLongFunction<T>, java.io.Serializable {}

    private <T> DataStream<T> source(Class<T> type, Events.Decoder<T> decoder, WatermarkStrategy<T> watermarks) {
        FileSource<T> source =
                FileSource.forRecordStreamFormat(new Events.EventFormat<>(type, decoder), inputs).build();
        return env.fromSource(source, watermarks, "events");
    }

    private DataStream<Events.Bid> bids() {
        return events(Events.Bid.class, Events::bid);
    }

    private DataStream<Events.Bid> timedBids() {
        return timedEvents(Events.Bid.class, Events::bid, bid -> bid.dateTime);
    }

    private DataStream<Events.PersonOrAuction> timedPeopleAndAuctions() {
        return timedEvents(Events.PersonOrAuction.class, Events::personOrAuction, event -> event.dateTime);
    }

    private DataStream<Joins.Winner> winners(Events.Decoder<Events.AuctionOrBid> decoder) {
        return timedEvents(Events.AuctionOrBid.class, decoder, event -> event.bid.dateTime)
                .keyBy(event -> event.bid.auction, Types.LONG)
                .process(new Joins.WinningBids());
    }

    /** q3: what cannot be part of a row is not sent. */
    private void sellersAuctions() {
        write(
                events(Events.PersonOrAuction.class, Events::personOrAuction)
                        .filter((FilterFunction<Events.PersonOrAuction>) event -> event.isPerson
                                ? switch (event.state) {
                                    case "or", "id", "ca" -> true;
                                    default -> false;
                                }
                                : event.category == 10)
                        .keyBy(event -> event.person, Types.LONG)
                        .process(new Joins.SellersAuctions())
                        .returns(Types.TUPLE(Types.STRING, Types.STRING, Types.STRING, Types.LONG)),
                (seller, row) -> {
                    row.text(seller.f0).separator().text(seller.f1).separator().text(seller.f2).separator();
                    row.number(seller.f3).end();
                });
    }

    /** q4: the few winning bids are added up by category. */
    private void averagePrices() {
        write(
                winners(Events::auctionOrBid)
                        .map(winner -> Tuple3.of(winner.auction.category, winner.best.price, 1L))
                        .returns(Types.TUPLE(Types.LONG, Types.LONG, Types.LONG))
                        .keyBy(price -> price.f0, Types.LONG)
                        .window(GlobalWindows.create())
                        .trigger(new AtEnd<>())
                        .reduce((left, right) -> Tuple3.of(left.f0, left.f1 + right.f1, left.f2 + right.f2)),
                (price, row) -> row.number(price.f0).separator().number(price.f1 / price.f2).end());
    }

    /** q15: distinct bidders and distinct auctions are spread differently; the parts are added up by day. */
    private void dailyDistinct() {
        DataStream<Events.Bid> bids = bids();
        DataStream<Bids.Statistics> bidders = distinct(bids, true);
        write(
                bidders.union(distinct(bids, false))
                        .keyBy(part -> part.day, Types.LONG)
                        .window(GlobalWindows.create())
                        .trigger(new AtEnd<>())
                        .reduce((left, right) -> left.copy().plus(right)),
                (day, row) -> {
                    row.number(day.day).separator().number(day.bids).separator().number(day.low).separator();
                    row.number(day.middle).separator().number(day.high).separator();
                    row.number(day.bidders).separator().number(day.auctions).end();
                });
    }

    private static DataStream<Bids.Statistics> distinct(DataStream<Events.Bid> bids, boolean ofBidders) {
        return bids.keyBy(Bids.Distinct.partAndDay(ofBidders), Types.TUPLE(Types.LONG, Types.LONG))
                .process(new Bids.Distinct(ofBidders));
    }

    private void wordCount() {
        FileSource<byte[]> source = FileSource.forRecordStreamFormat(new Events.LineFormat(), inputs).build();
        write(
                env.fromSource(source, WatermarkStrategy.noWatermarks(), "lines")
                        .flatMap(new Words())
                        .returns(Types.STRING)
                        .keyBy(word -> word)
                        .window(GlobalWindows.create())
                        .trigger(new AtEnd<>())
                        .aggregate(new Count())
                        .returns(Types.TUPLE(Types.STRING, Types.LONG)),
                (count, row) -> row.text(count.f0).separator().number(count.f1).end());
    }

    private <T> void write(DataStream<T> rows, Rows.Formatter<T> formatter) {
        boolean exactlyOnce = env.getCheckpointConfig().isCheckpointingEnabled();
        rows.sinkTo(exactlyOnce ? Rows.committedFiles(output, formatter) : new Rows.RowSink<>(output, formatter));
    }

    private void writeBids(DataStream<Events.Bid> bids) {
        write(bids, (bid, row) -> {
            row.number(bid.auction).separator().number(bid.bidder).separator();
            row.number(bid.price).separator().number(bid.dateTime).end();
        });
    }

    private void writeCounts(DataStream<Bids.AuctionCount> counts) {
        write(counts, (count, row) -> {
            row.number(count.windowEnd).separator().number(count.auction).separator().number(count.bids).end();
        });
    }

    private void writeSellers(DataStream<Tuple3<Long, String, Long>> sellers) {
        write(sellers, (seller, row) -> {
            row.number(seller.f0).separator().text(seller.f1).separator().number(seller.f2).end();
        });
    }

    private void writeSessions(DataStream<Bids.Session> sessions) {
        write(sessions, (session, row) -> {
            row.number(session.bidder).separator().number(session.bids).separator();
            row.number(session.first).separator().number(session.last + Bids.Sessions.GAP).end();
        });
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
}
