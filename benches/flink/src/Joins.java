import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.types.StringValue;
import org.apache.flink.util.Collector;

/**
 * The queries that match auctions with people or bids.
 *
 * <p>Each is one keyed process function over one stream of both kinds of event, not a connected
 * stream or a join operator: one exchange and one input are read, and one state per key is looked
 * up once per event, where a join would keep two and a window of its own. States are changed in
 * place, which the HashMap backend allows: a read copies what a snapshot still holds. Incoming
 * records are reused by Flink, so what is kept is copied.
 */
final class Joins {
    private Joins() {}

    static <T extends Events.Fields<T>> ValueStateDescriptor<T> state(Class<T> type) {
        return new ValueStateDescriptor<>("state", TypeInformation.of(type));
    }

    static void writeBids(List<Events.Bid> bids, DataOutputView out) throws IOException {
        out.writeInt(bids.size());
        for (Events.Bid bid : bids) {
            bid.write(out);
        }
    }

    static ArrayList<Events.Bid> readBids(DataInputView in) throws IOException {
        ArrayList<Events.Bid> bids = new ArrayList<>();
        for (int count = in.readInt(); count > 0; count--) {
            Events.Bid bid = new Events.Bid();
            bid.read(in);
            bids.add(bid);
        }
        return bids;
    }

    static ArrayList<Events.Bid> copyBids(List<Events.Bid> bids) {
        ArrayList<Events.Bid> copy = new ArrayList<>(bids.size());
        for (Events.Bid bid : bids) {
            copy.add(bid.copy());
        }
        return copy;
    }

    /** q3: a person, once seen, and until then the auctions of that seller. */
    static final class SellersAuctions
            extends KeyedProcessFunction<Long, Events.PersonOrAuction, Tuple4<String, String, String, Long>> {
        /** Name, city, state; or the auctions that wait for them. */
        public static final class Seller extends Events.Fields<Seller> {
            String name;
            String city;
            String state;
            ArrayList<Long> waiting = new ArrayList<>(2);

            @Override
            public void copyTo(Seller target) {
                target.name = name;
                target.city = city;
                target.state = state;
                target.waiting = new ArrayList<>(waiting);
            }

            @Override
            public Seller copy() {
                Seller seller = new Seller();
                copyTo(seller);
                return seller;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                StringValue.writeString(name, out);
                StringValue.writeString(city, out);
                StringValue.writeString(state, out);
                out.writeInt(waiting.size());
                for (long auction : waiting) {
                    out.writeLong(auction);
                }
            }

            @Override
            public void read(DataInputView in) throws IOException {
                name = StringValue.readString(in);
                city = StringValue.readString(in);
                state = StringValue.readString(in);
                waiting = new ArrayList<>(2);
                for (int count = in.readInt(); count > 0; count--) {
                    waiting.add(in.readLong());
                }
            }
        }

        private transient ValueState<Seller> sellers;
        private transient Tuple4<String, String, String, Long> row;

        @Override
        public void open(OpenContext context) {
            sellers = getRuntimeContext().getState(state(Seller.class));
            row = new Tuple4<>();
        }

        @Override
        public void processElement(
                Events.PersonOrAuction event, Context context, Collector<Tuple4<String, String, String, Long>> out)
                throws Exception {
            Seller seller = sellers.value();
            if (seller == null) {
                seller = new Seller();
                sellers.update(seller);
            }
            if (event.isPerson) {
                seller.name = event.name;
                seller.city = event.city;
                seller.state = event.state;
                for (long auction : seller.waiting) {
                    emit(seller, auction, out);
                }
                seller.waiting = new ArrayList<>(0);
            } else if (seller.name != null) {
                emit(seller, event.auction, out);
            } else {
                seller.waiting.add(event.auction);
            }
        }

        private void emit(Seller seller, long auction, Collector<Tuple4<String, String, String, Long>> out) {
            row.setFields(seller.name, seller.city, seller.state, auction);
            out.collect(row);
        }
    }

    /**
     * q8: people who opened an auction in the window in which they joined. A row goes out as soon as
     * both are known; a window's end only frees its state, by one timer per person and window.
     */
    static final class NewSellers
            extends KeyedProcessFunction<Long, Events.PersonOrAuction, Tuple3<Long, String, Long>> {
        static final long WINDOW = 10_000;

        /** Of one person: the window of joining, and the windows of auctions. */
        public static final class Activity extends Events.Fields<Activity> {
            String name;
            long joined = Long.MIN_VALUE;
            boolean emitted;
            ArrayList<Long> selling = new ArrayList<>(2);

            @Override
            public void copyTo(Activity target) {
                target.name = name;
                target.joined = joined;
                target.emitted = emitted;
                target.selling = new ArrayList<>(selling);
            }

            @Override
            public Activity copy() {
                Activity activity = new Activity();
                copyTo(activity);
                return activity;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                StringValue.writeString(name, out);
                out.writeLong(joined);
                out.writeBoolean(emitted);
                out.writeInt(selling.size());
                for (long window : selling) {
                    out.writeLong(window);
                }
            }

            @Override
            public void read(DataInputView in) throws IOException {
                name = StringValue.readString(in);
                joined = in.readLong();
                emitted = in.readBoolean();
                selling = new ArrayList<>(2);
                for (int count = in.readInt(); count > 0; count--) {
                    selling.add(in.readLong());
                }
            }
        }

        private transient ValueState<Activity> activities;
        private transient Tuple3<Long, String, Long> row;

        @Override
        public void open(OpenContext context) {
            activities = getRuntimeContext().getState(state(Activity.class));
            row = new Tuple3<>();
        }

        @Override
        public void processElement(
                Events.PersonOrAuction event, Context context, Collector<Tuple3<Long, String, Long>> out)
                throws Exception {
            long window = event.dateTime - Math.floorMod(event.dateTime, WINDOW);
            Activity activity = activities.value();
            if (activity == null) {
                activity = new Activity();
                activities.update(activity);
            }
            if (window != activity.joined && !activity.selling.contains(window)) {
                context.timerService().registerEventTimeTimer(window + WINDOW - 1);
            }
            if (event.isPerson) {
                activity.name = event.name;
                activity.joined = window;
            } else if (!activity.selling.contains(window)) {
                activity.selling.add(window);
            }
            if (!activity.emitted && activity.joined == window && activity.selling.contains(window)) {
                activity.emitted = true;
                row.setFields(event.person, activity.name, window);
                out.collect(row);
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Tuple3<Long, String, Long>> out)
                throws Exception {
            long ended = timestamp + 1 - WINDOW;
            Activity activity = activities.value();
            if (activity.joined == ended) {
                activity.joined = Long.MIN_VALUE;
            }
            activity.selling.remove(ended);
            if (activity.joined == Long.MIN_VALUE && activity.selling.isEmpty()) {
                activities.clear();
            }
        }
    }

    /** An auction with its highest valid bid: the state of {@link WinningBids} and what it emits. */
    public static final class Winner extends Events.Fields<Winner> {
        /** Null until the auction has come. */
        Events.AuctionOrBid auction;
        /** Null until there is a valid bid. */
        Events.Bid best;
        /** Bids that came ahead of their auction. */
        ArrayList<Events.Bid> early;

        /** Takes a bid that was made while the auction was open and beats the best so far. */
        void offer(Events.Bid bid) {
            boolean open = auction.bid.dateTime <= bid.dateTime && bid.dateTime <= auction.expires;
            if (open && (best == null || bid.beats(best))) {
                best = bid.copy();
            }
        }

        @Override
        public void copyTo(Winner target) {
            target.auction = auction == null ? null : auction.copy();
            target.best = best == null ? null : best.copy();
            target.early = early == null ? null : copyBids(early);
        }

        @Override
        public Winner copy() {
            Winner winner = new Winner();
            copyTo(winner);
            return winner;
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeBoolean(auction != null);
            if (auction != null) {
                auction.write(out);
            }
            out.writeBoolean(best != null);
            if (best != null) {
                best.write(out);
            }
            out.writeBoolean(early != null);
            if (early != null) {
                writeBids(early, out);
            }
        }

        @Override
        public void read(DataInputView in) throws IOException {
            auction = in.readBoolean() ? new Events.AuctionOrBid() : null;
            if (auction != null) {
                auction.read(in);
            }
            best = in.readBoolean() ? new Events.Bid() : null;
            if (best != null) {
                best.read(in);
            }
            early = in.readBoolean() ? readBids(in) : null;
        }
    }

    /**
     * q4, q9: each auction's winning bid once the watermark has reached its end. One timer per
     * auction; only the best bid is kept. Bids ahead of their auction wait; a timer drops them once the
     * watermark has passed them, for an auction that began before them cannot come then.
     */
    static final class WinningBids extends KeyedProcessFunction<Long, Events.AuctionOrBid, Winner> {
        private transient ValueState<Winner> winners;

        @Override
        public void open(OpenContext context) {
            winners = getRuntimeContext().getState(state(Winner.class));
        }

        @Override
        public void processElement(Events.AuctionOrBid event, Context context, Collector<Winner> out)
                throws Exception {
            Winner winner = winners.value();
            if (winner == null) {
                winner = new Winner();
                winners.update(winner);
            }
            if (!event.isBid) {
                winner.auction = event.copy();
                if (winner.early != null) {
                    winner.early.forEach(winner::offer);
                    winner.early = null;
                }
                context.timerService().registerEventTimeTimer(event.expires);
            } else if (winner.auction != null) {
                winner.offer(event.bid);
            } else {
                if (winner.early == null) {
                    winner.early = new ArrayList<>(4);
                    context.timerService().registerEventTimeTimer(event.bid.dateTime);
                }
                winner.early.add(event.bid.copy());
            }
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Winner> out) throws Exception {
            Winner winner = winners.value();
            if (winner == null) {
                return;
            }
            if (winner.auction != null) {
                if (winner.auction.expires <= timestamp) {
                    if (winner.best != null) {
                        out.collect(winner);
                    }
                    winners.clear();
                }
                return;
            }
            winner.early.removeIf(bid -> bid.dateTime <= timestamp);
            if (winner.early.isEmpty()) {
                winners.clear();
            } else {
                long last = winner.early.stream().mapToLong(bid -> bid.dateTime).max().getAsLong();
                context.timerService().registerEventTimeTimer(last);
            }
        }
    }

    /**
     * q20: bids on auctions of one category, with the auction. Auctions of other categories are sent as
     * well, a fifteenth of the bids, so that the bids that wait for them can be let go.
     */
    static final class BidsWithAuction
            extends KeyedProcessFunction<Long, Events.AuctionOrBid, Tuple2<Events.Bid, Tuple2<Long, Long>>> {
        /** Seller and end of an auction, once seen; until then its bids. */
        public static final class Auction extends Events.Fields<Auction> {
            boolean seen;
            boolean wanted;
            long seller;
            long expires;
            ArrayList<Events.Bid> waiting;

            @Override
            public void copyTo(Auction target) {
                target.seen = seen;
                target.wanted = wanted;
                target.seller = seller;
                target.expires = expires;
                target.waiting = waiting == null ? null : copyBids(waiting);
            }

            @Override
            public Auction copy() {
                Auction auction = new Auction();
                copyTo(auction);
                return auction;
            }

            @Override
            public void write(DataOutputView out) throws IOException {
                out.writeBoolean(seen);
                out.writeBoolean(wanted);
                out.writeLong(seller);
                out.writeLong(expires);
                out.writeBoolean(waiting != null);
                if (waiting != null) {
                    writeBids(waiting, out);
                }
            }

            @Override
            public void read(DataInputView in) throws IOException {
                seen = in.readBoolean();
                wanted = in.readBoolean();
                seller = in.readLong();
                expires = in.readLong();
                waiting = in.readBoolean() ? readBids(in) : null;
            }
        }

        private final long category;
        private transient ValueState<Auction> auctions;
        private transient Tuple2<Events.Bid, Tuple2<Long, Long>> row;

        BidsWithAuction(long category) {
            this.category = category;
        }

        @Override
        public void open(OpenContext context) {
            auctions = getRuntimeContext().getState(state(Auction.class));
            row = Tuple2.of(null, new Tuple2<>());
        }

        @Override
        public void processElement(
                Events.AuctionOrBid event, Context context, Collector<Tuple2<Events.Bid, Tuple2<Long, Long>>> out)
                throws Exception {
            Auction auction = auctions.value();
            if (auction == null) {
                auction = new Auction();
                auctions.update(auction);
            }
            if (!event.isBid) {
                auction.seen = true;
                auction.wanted = event.category == category;
                auction.seller = event.seller;
                auction.expires = event.expires;
                if (auction.wanted && auction.waiting != null) {
                    for (Events.Bid bid : auction.waiting) {
                        emit(auction, bid, out);
                    }
                }
                auction.waiting = null;
            } else if (!auction.seen) {
                if (auction.waiting == null) {
                    auction.waiting = new ArrayList<>(4);
                }
                auction.waiting.add(event.bid.copy());
            } else if (auction.wanted) {
                emit(auction, event.bid, out);
            }
        }

        private void emit(Auction auction, Events.Bid bid, Collector<Tuple2<Events.Bid, Tuple2<Long, Long>>> out) {
            row.f0 = bid;
            row.f1.setFields(auction.seller, auction.expires);
            out.collect(row);
        }

        static TypeInformation<Tuple2<Events.Bid, Tuple2<Long, Long>>> rowType() {
            return Types.TUPLE(TypeInformation.of(Events.Bid.class), Types.TUPLE(Types.LONG, Types.LONG));
        }
    }
}
