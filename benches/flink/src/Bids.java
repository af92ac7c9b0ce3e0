import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * The queries that gather bids by a key.
 *
 * <p>Windows are keyed process functions with one state and at most a few timers per key. The window
 * operator looks up a state and a timer for each pair of record and window; see {@link Windows} for the
 * same queries with it. A query whose answer is due at the end of input has one timer per key at the
 * last watermark, registered with the key's first record, where the end-of-stream trigger would look
 * its timer up for each.
 */
final class Bids {
    private Bids() {}

    /** Bids on an auction in the window that ends at a time. */
    public static final class AuctionCount extends Events.Fields<AuctionCount> {
        public long windowEnd;
        public long auction;
        public long bids;

        @Override
        public void copyTo(AuctionCount target) {
            target.windowEnd = windowEnd;
            target.auction = auction;
            target.bids = bids;
        }

        @Override
        public AuctionCount copy() {
            AuctionCount count = new AuctionCount();
            copyTo(count);
            return count;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeLong(windowEnd);
            out.writeLong(auction);
            out.writeLong(bids);
        }

        @Override
        public void read(DataInputView in) throws IOException {
            windowEnd = in.readLong();
            auction = in.readLong();
            bids = in.readLong();
        }
    }

    /**
     * q5, first step: bids of each auction in sliding windows. A bid raises the count of one pane as
     * long as the slide; a window adds up its panes when its timer fires. There is one timer per
     * auction at a time: a window's end registers the next.
     */
    static final class CountInSlidingWindows extends KeyedProcessFunction<Long, Events.Bid, AuctionCount> {
        static final long SIZE = 10_000;
        static final long SLIDE = 2_000;
        private static final int PANES = (int) (SIZE / SLIDE);

        /** Counts of consecutive panes; the first is the pane with number {@code first}. */
        public static final class Panes extends Events.Fields<Panes> {
            long first;
            int length;
            int[] counts = new int[PANES];

            void add(long pane) {
                if (length == 0) {
                    first = pane;
                }
                if (pane < first) {
                    int shift = (int) (first - pane);
                    grow(length + shift);
                    System.arraycopy(counts, 0, counts, shift, length);
                    java.util.Arrays.fill(counts, 0, shift, 0);
                    length += shift;
                    first = pane;
                }
                int index = (int) (pane - first);
                if (index >= length) {
                    grow(index + 1);
                    length = index + 1;
                }
                counts[index]++;
            }

            /** The bids in panes from {@code begin} to before {@code end}. */
            long sum(long begin, long end) {
                long sum = 0;
                int last = (int) Math.min(end - first, length);
                for (int index = (int) Math.max(begin - first, 0); index < last; index++) {
                    sum += counts[index];
                }
                return sum;
            }

            /** Forgets the panes before {@code begin}, and empty ones that are then the first. */
            void forgetBefore(long begin) {
                int drop = (int) Math.min(Math.max(begin - first, 0), length);
                while (drop < length && counts[drop] == 0) {
                    drop++;
                }
                System.arraycopy(counts, drop, counts, 0, length - drop);
                java.util.Arrays.fill(counts, length - drop, length, 0);
                length -= drop;
                first += drop;
            }

            private void grow(int needed) {
                if (needed > counts.length) {
                    counts = java.util.Arrays.copyOf(counts, Math.max(needed, 2 * counts.length));
                }
            }

            @Override
            public void copyTo(Panes target) {
                target.first = first;
                target.length = length;
                target.counts = counts.clone();
            }

            @Override
            public Panes copy() {
                Panes panes = new Panes();
                copyTo(panes);
                return panes;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                out.writeLong(first);
                out.writeInt(length);
                for (int index = 0; index < length; index++) {
                    out.writeInt(counts[index]);
                }
            }

            @Override
            public void read(DataInputView in) throws IOException {
                first = in.readLong();
                length = in.readInt();
                counts = new int[Math.max(length, PANES)];
                for (int index = 0; index < length; index++) {
                    counts[index] = in.readInt();
                }
            }
        }

        private transient ValueState<Panes> auctions;
        private transient AuctionCount row;

        @Override
        public void open(OpenContext context) {
            auctions = getRuntimeContext().getState(Joins.state(Panes.class));
            row = new AuctionCount();
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<AuctionCount> out) throws Exception {
            long pane = Math.floorDiv(bid.dateTime, SLIDE);
            Panes panes = auctions.value();
            if (panes == null) {
                panes = new Panes();
                auctions.update(panes);
            }
            boolean earliest = panes.length == 0 || pane < panes.first;
            panes.add(pane);
            if (earliest) {
                // Windows that the watermark has passed have fired already.
                long watermark = context.timerService().currentWatermark();
                long passed = watermark == Long.MIN_VALUE ? pane : Math.floorDiv(watermark + 1, SLIDE);
                context.timerService().registerEventTimeTimer((Math.max(pane, passed) + 1) * SLIDE - 1);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<AuctionCount> out) throws Exception {
            Panes panes = auctions.value();
            if (panes == null) {
                return;
            }
            long end = (timestamp + 1) / SLIDE;
            long bids = panes.sum(end - PANES, end);
            if (bids > 0) {
                row.windowEnd = timestamp + 1;
                row.auction = context.getCurrentKey();
                row.bids = bids;
                out.collect(row);
            }
            panes.forgetBefore(end + 1 - PANES);
            if (panes.length == 0) {
                auctions.clear();
            } else {
                context.timerService().registerEventTimeTimer((Math.max(panes.first, end) + 1) * SLIDE - 1);
            }
        }
    }

    /** q5, second step: the auctions with the most bids, by window. */
    static final class MostBids extends KeyedProcessFunction<Long, AuctionCount, AuctionCount> {
        /** The most bids, and the auctions that have as many. */
        public static final class Leaders extends Events.Fields<Leaders> {
            long bids;
            ArrayList<Long> auctions = new ArrayList<>(2);

            @Override
            public void copyTo(Leaders target) {
                target.bids = bids;
                target.auctions = new ArrayList<>(auctions);
            }

            @Override
            public Leaders copy() {
                Leaders leaders = new Leaders();
                copyTo(leaders);
                return leaders;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                out.writeLong(bids);
                out.writeInt(auctions.size());
                for (long auction : auctions) {
                    out.writeLong(auction);
                }
            }

            @Override
            public void read(DataInputView in) throws IOException {
                bids = in.readLong();
                auctions = new ArrayList<>(2);
                for (int count = in.readInt(); count > 0; count--) {
                    auctions.add(in.readLong());
                }
            }
        }

        private transient ValueState<Leaders> windows;
        private transient AuctionCount row;

        @Override
        public void open(OpenContext context) {
            windows = getRuntimeContext().getState(Joins.state(Leaders.class));
            row = new AuctionCount();
        }

        @Override
        public void processElement(AuctionCount count, Context context, Collector<AuctionCount> out)
                throws Exception {
            Leaders leaders = windows.value();
            if (leaders == null) {
                leaders = new Leaders();
                windows.update(leaders);
                context.timerService().registerEventTimeTimer(count.windowEnd - 1);
            }
            if (count.bids > leaders.bids) {
                leaders.bids = count.bids;
                leaders.auctions.clear();
            }
            if (count.bids == leaders.bids) {
                leaders.auctions.add(count.auction);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<AuctionCount> out) throws Exception {
            Leaders leaders = windows.value();
            for (long auction : leaders.auctions) {
                row.windowEnd = context.getCurrentKey();
                row.auction = auction;
                row.bids = leaders.bids;
                out.collect(row);
            }
            windows.clear();
        }
    }

    /**
     * q7, both steps: the bids at the highest price of each window. First by a part of the price, so
     * that the work is spread evenly over the subtasks whatever the auctions and bidders are, then the
     * few that are left by window. Only bids at the highest price so far are kept.
     */
    static final class HighestBids extends KeyedProcessFunction<Long, Events.Bid, Events.Bid> {
        static final long WINDOW = 10_000;
        static final long PARTS = 64;

        /** The highest bids of the windows that are open, at least one for each. */
        public static final class Open extends Events.Fields<Open> {
            ArrayList<ArrayList<Events.Bid>> windows = new ArrayList<>(4);

            @Override
            public void copyTo(Open target) {
                target.windows = new ArrayList<>(windows.size());
                for (ArrayList<Events.Bid> bids : windows) {
                    target.windows.add(Joins.copyBids(bids));
                }
            }

            @Override
            public Open copy() {
                Open open = new Open();
                copyTo(open);
                return open;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                out.writeInt(windows.size());
                for (ArrayList<Events.Bid> bids : windows) {
                    Joins.writeBids(bids, out);
                }
            }

            @Override
            public void read(DataInputView in) throws IOException {
                windows = new ArrayList<>(4);
                for (int count = in.readInt(); count > 0; count--) {
                    windows.add(Joins.readBids(in));
                }
            }
        }

        static long windowOf(Events.Bid bid) {
            return bid.dateTime - Math.floorMod(bid.dateTime, WINDOW);
        }

        private transient ValueState<Open> parts;

        @Override
        public void open(OpenContext context) {
            parts = getRuntimeContext().getState(Joins.state(Open.class));
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<Events.Bid> out) throws Exception {
            Open open = parts.value();
            if (open == null) {
                open = new Open();
                parts.update(open);
            }
            long window = windowOf(bid);
            // The latest window is the one that most bids belong to.
            for (int index = open.windows.size() - 1; index >= 0; index--) {
                ArrayList<Events.Bid> highest = open.windows.get(index);
                Events.Bid first = highest.get(0);
                if (window <= first.dateTime && first.dateTime < window + WINDOW) {
                    if (bid.price > first.price) {
                        highest.clear();
                        highest.add(bid.copy());
                    } else if (bid.price == first.price) {
                        highest.add(bid.copy());
                    }
                    return;
                }
            }
            ArrayList<Events.Bid> highest = new ArrayList<>(2);
            highest.add(bid.copy());
            open.windows.add(highest);
            context.timerService().registerEventTimeTimer(window + WINDOW - 1);
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Events.Bid> out) throws Exception {
            Open open = parts.value();
            for (int index = 0; index < open.windows.size(); index++) {
                ArrayList<Events.Bid> highest = open.windows.get(index);
                if (windowOf(highest.get(0)) + WINDOW - 1 == timestamp) {
                    highest.forEach(out::collect);
                    open.windows.remove(index);
                    break;
                }
            }
            if (open.windows.isEmpty()) {
                parts.clear();
            }
        }
    }

    /** q11: a session of a bidder: its bids, its first and its last time; sessions of one bidder form a list. */
    public static final class Session extends Events.Fields<Session> {
        public long bidder;
        public long bids;
        public long first;
        public long last;
        public Session next;

        @Override
        public void copyTo(Session target) {
            target.bidder = bidder;
            target.bids = bids;
            target.first = first;
            target.last = last;
            target.next = next == null ? null : next.copy();
        }

        @Override
        public Session copy() {
            Session session = new Session();
            copyTo(session);
            return session;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeLong(bidder);
            out.writeLong(bids);
            out.writeLong(first);
            out.writeLong(last);
            out.writeBoolean(next != null);
            if (next != null) {
                next.write(out);
            }
        }

        @Override
        public void read(DataInputView in) throws IOException {
            bidder = in.readLong();
            bids = in.readLong();
            first = in.readLong();
            last = in.readLong();
            next = in.readBoolean() ? new Session() : null;
            if (next != null) {
                next.read(in);
            }
        }
    }

    /**
     * q11: sessions of each bidder. A bid extends the open session; its timer stays where it is and,
     * when it fires too early, registers the session's end of then, where the session window operator
     * merges two windows, and deletes and registers a timer, for each bid.
     */
    static final class Sessions extends KeyedProcessFunction<Long, Events.Bid, Session> {
        static final long GAP = 10_000;

        private transient ValueState<Session> bidders;

        @Override
        public void open(OpenContext context) {
            bidders = getRuntimeContext().getState(Joins.state(Session.class));
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<Session> out) throws Exception {
            long time = bid.dateTime;
            Session head = bidders.value();
            if (head != null && head.next == null && head.first - GAP <= time && time <= head.last + GAP) {
                head.bids++;
                head.first = Math.min(head.first, time);
                head.last = Math.max(head.last, time);
                return;
            }
            Session merged = new Session();
            merged.bidder = bid.bidder;
            merged.bids = 1;
            merged.first = time;
            merged.last = time;
            boolean joined = false;
            Session apart = null;
            for (Session session = head; session != null; ) {
                Session next = session.next;
                if (session.first <= merged.last + GAP && merged.first <= session.last + GAP) {
                    merged.bids += session.bids;
                    merged.first = Math.min(merged.first, session.first);
                    merged.last = Math.max(merged.last, session.last);
                    joined = true;
                } else {
                    session.next = apart;
                    apart = session;
                }
                session = next;
            }
            merged.next = apart;
            bidders.update(merged);
            if (!joined) {
                context.timerService().registerEventTimeTimer(time + GAP - 1);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Session> out) throws Exception {
            Session head = bidders.value();
            Session open = null;
            for (Session session = head; session != null; ) {
                Session next = session.next;
                if (session.last + GAP - 1 <= timestamp) {
                    out.collect(session);
                } else {
                    session.next = open;
                    open = session;
                    context.timerService().registerEventTimeTimer(session.last + GAP - 1);
                }
                session = next;
            }
            if (open == null) {
                bidders.clear();
            } else if (open != head) {
                bidders.update(open);
            }
        }
    }

    /** Bids, and how many are in each range of prices; q15's have distinct bidders and auctions, q17's prices. */
    public static final class Statistics extends Events.Fields<Statistics> {
        public long auction;
        public long day;
        public long bids;
        public long low;
        public long middle;
        public long high;
        public long least;
        public long greatest;
        public long sum;
        public long bidders;
        public long auctions;

        static long dayOf(Events.Bid bid) {
            return Math.floorDiv(bid.dateTime, 86_400_000L);
        }

        void add(long price) {
            low += price < 10_000 ? 1 : 0;
            middle += 10_000 <= price && price < 1_000_000 ? 1 : 0;
            high += 1_000_000 <= price ? 1 : 0;
            least = bids == 0 ? price : Math.min(least, price);
            greatest = Math.max(greatest, price);
            sum += price;
            bids++;
        }

        /** Adds up what can be added up. */
        Statistics plus(Statistics other) {
            bids += other.bids;
            low += other.low;
            middle += other.middle;
            high += other.high;
            bidders += other.bidders;
            auctions += other.auctions;
            return this;
        }

        @Override
        public void copyTo(Statistics target) {
            target.auction = auction;
            target.day = day;
            target.bids = bids;
            target.low = low;
            target.middle = middle;
            target.high = high;
            target.least = least;
            target.greatest = greatest;
            target.sum = sum;
            target.bidders = bidders;
            target.auctions = auctions;
        }

        @Override
        public Statistics copy() {
            Statistics statistics = new Statistics();
            copyTo(statistics);
            return statistics;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            for (long field : new long[] {auction, day, bids, low, middle, high, least, greatest, sum, bidders, auctions}) {
                out.writeLong(field);
            }
        }

        @Override
        public void read(DataInputView in) throws IOException {
            auction = in.readLong();
            day = in.readLong();
            bids = in.readLong();
            low = in.readLong();
            middle = in.readLong();
            high = in.readLong();
            least = in.readLong();
            greatest = in.readLong();
            sum = in.readLong();
            bidders = in.readLong();
            auctions = in.readLong();
        }
    }

    /**
     * q15, first step, by a part of the bidders or of the auctions: a day has too few keys to spread, so
     * the distinct values of each part are counted apart and added up. State is one set per part and day.
     */
    static final class Distinct extends KeyedProcessFunction<Tuple2<Long, Long>, Events.Bid, Statistics> {
        static final long PARTS = 128;

        /** The distinct values so far, and the statistics. */
        public static final class Part extends Events.Fields<Part> {
            HashSet<Long> values = new HashSet<>();
            Statistics statistics = new Statistics();

            @Override
            public void copyTo(Part target) {
                target.values = new HashSet<>(values);
                target.statistics = statistics.copy();
            }

            @Override
            public Part copy() {
                Part part = new Part();
                copyTo(part);
                return part;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                out.writeInt(values.size());
                for (long value : values) {
                    out.writeLong(value);
                }
                statistics.write(out);
            }

            @Override
            public void read(DataInputView in) throws IOException {
                values = new HashSet<>();
                for (int count = in.readInt(); count > 0; count--) {
                    values.add(in.readLong());
                }
                statistics = new Statistics();
                statistics.read(in);
            }
        }

        private final boolean ofBidders;
        private transient ValueState<Part> parts;

        Distinct(boolean ofBidders) {
            this.ofBidders = ofBidders;
        }

        static KeySelector<Events.Bid, Tuple2<Long, Long>> partAndDay(boolean ofBidders) {
            return bid -> Tuple2.of((ofBidders ? bid.bidder : bid.auction) % PARTS, Statistics.dayOf(bid));
        }

        @Override
        public void open(OpenContext context) {
            parts = getRuntimeContext().getState(Joins.state(Part.class));
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<Statistics> out) throws Exception {
            Part part = parts.value();
            if (part == null) {
                part = new Part();
                part.statistics.day = Statistics.dayOf(bid);
                parts.update(part);
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            if (ofBidders) {
                part.statistics.add(bid.price);
                part.values.add(bid.bidder);
            } else {
                part.values.add(bid.auction);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Statistics> out) throws Exception {
            Part part = parts.value();
            if (ofBidders) {
                part.statistics.bidders = part.values.size();
            } else {
                part.statistics.auctions = part.values.size();
            }
            out.collect(part.statistics);
            parts.clear();
        }
    }

    /** q17: statistics of each auction and day. */
    static final class AuctionStatistics extends KeyedProcessFunction<Tuple2<Long, Long>, Events.Bid, Statistics> {
        private transient ValueState<Statistics> auctions;

        @Override
        public void open(OpenContext context) {
            auctions = getRuntimeContext().getState(Joins.state(Statistics.class));
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<Statistics> out) throws Exception {
            Statistics statistics = auctions.value();
            if (statistics == null) {
                statistics = new Statistics();
                statistics.auction = bid.auction;
                statistics.day = Statistics.dayOf(bid);
                auctions.update(statistics);
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            statistics.add(bid.price);
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Statistics> out) throws Exception {
            out.collect(auctions.value());
            auctions.clear();
        }
    }

    /** q18: each bidder's last bid on each auction, of two at one time the higher; the key is both. */
    static final class LastBids extends KeyedProcessFunction<Tuple2<Long, Long>, Events.Bid, Events.Bid> {
        private transient ValueState<Events.Bid> bids;

        @Override
        public void open(OpenContext context) {
            bids = getRuntimeContext().getState(Joins.state(Events.Bid.class));
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<Events.Bid> out) throws Exception {
            Events.Bid last = bids.value();
            if (last == null) {
                bids.update(bid.copy());
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            } else if (last.dateTime < bid.dateTime || (last.dateTime == bid.dateTime && last.price < bid.price)) {
                bid.copyTo(last);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Events.Bid> out) throws Exception {
            out.collect(bids.value());
            bids.clear();
        }
    }

    /** q19: each auction's ten highest bids, with their ranks. */
    static final class TopTen extends KeyedProcessFunction<Long, Events.Bid, Tuple2<Events.Bid, Integer>> {
        private static final int RANKS = 10;

        /** At most ten bids, the highest first. */
        public static final class Ranking extends Events.Fields<Ranking> {
            ArrayList<Events.Bid> bids = new ArrayList<>(RANKS);

            @Override
            public void copyTo(Ranking target) {
                target.bids = Joins.copyBids(bids);
            }

            @Override
            public Ranking copy() {
                Ranking ranking = new Ranking();
                copyTo(ranking);
                return ranking;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                Joins.writeBids(bids, out);
            }

            @Override
            public void read(DataInputView in) throws IOException {
                bids = Joins.readBids(in);
            }
        }

        private transient ValueState<Ranking> auctions;
        private transient Tuple2<Events.Bid, Integer> row;

        @Override
        public void open(OpenContext context) {
            auctions = getRuntimeContext().getState(Joins.state(Ranking.class));
            row = new Tuple2<>();
        }

        @Override
        public void processElement(Events.Bid bid, Context context, Collector<Tuple2<Events.Bid, Integer>> out)
                throws Exception {
            Ranking ranking = auctions.value();
            if (ranking == null) {
                ranking = new Ranking();
                auctions.update(ranking);
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            ArrayList<Events.Bid> bids = ranking.bids;
            Events.Bid kept;
            if (bids.size() < RANKS) {
                kept = bid.copy();
            } else if (bid.beats(bids.get(RANKS - 1))) {
                kept = bids.remove(RANKS - 1);
                bid.copyTo(kept);
            } else {
                return;
            }
            int rank = bids.size();
            while (rank > 0 && kept.beats(bids.get(rank - 1))) {
                rank--;
            }
            bids.add(rank, kept);
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Tuple2<Events.Bid, Integer>> out)
                throws Exception {
            ArrayList<Events.Bid> bids = auctions.value().bids;
            for (int index = 0; index < bids.size(); index++) {
                row.setFields(bids.get(index), index + 1);
                out.collect(row);
            }
            auctions.clear();
        }

        static TypeInformation<Tuple2<Events.Bid, Integer>> rowType() {
            return Types.TUPLE(TypeInformation.of(Events.Bid.class), Types.INT);
        }
    }
}
