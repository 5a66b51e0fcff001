import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;

/** Options of a run, with the names and meanings of bench/purgatory/one_run.py. */
final class Options {
    int n = 1_000_000;
    int warmup;
    int size = 100;
    int keys = 3;
    int keySpace = 100;
    int purgeInterval = 1000;
    int show;
    long timeoutMs = 200;
    long seed = 1;
    double rate;
    double p50 = 20;
    double p75 = 60;
    boolean freshKeys;
    boolean bare;

    /** Throws IllegalArgumentException for impossible values. */
    static Options of(String[] words) {
        Options options = new Options();
        Deque<String> left = new ArrayDeque<>(List.of(words));
        while (!left.isEmpty()) {
            String name = left.pop();
            if (name.equals("--fresh-keys")) options.freshKeys = true;
            else if (name.equals("--bare")) options.bare = true;
            else if (left.isEmpty()) throw new IllegalArgumentException(name + " needs a value");
            else options.set(name, left.pop());
        }
        options.check();
        return options;
    }

    private void set(String name, String value) {
        switch (name) {
            case "--mix" -> {
                boolean isLow = value.equals("low");
                if (!isLow && !value.equals("high")) throw new IllegalArgumentException("--mix is low or high, not " + value);
                p50 = isLow ? 20 : 200;
                p75 = isLow ? 60 : 400;
            }
            case "--p50" -> p50 = Double.parseDouble(value);
            case "--p75" -> p75 = Double.parseDouble(value);
            case "--rate" -> rate = Double.parseDouble(value);
            case "--n" -> n = Integer.parseInt(value);
            case "--warmup" -> warmup = Integer.parseInt(value);
            case "--timeout" -> timeoutMs = Long.parseLong(value);
            case "--size" -> size = Integer.parseInt(value);
            case "--keys" -> keys = Integer.parseInt(value);
            case "--key-space" -> keySpace = Integer.parseInt(value);
            case "--purge-interval" -> purgeInterval = Integer.parseInt(value);
            case "--seed" -> seed = Long.parseLong(value);
            case "--show" -> show = Integer.parseInt(value);
            default -> throw new IllegalArgumentException("no such option: " + name);
        }
    }

    private void check() {
        boolean fits = n > 0 && warmup >= 0 && size >= 0 && keys > 0 && keySpace > 0 && purgeInterval > 0 && timeoutMs > 0
            && show >= 0 && rate >= 0 && p50 > 0 && p75 > p50;
        if (!fits) throw new IllegalArgumentException("an option is out of its range");
        if (rate > 0 && n / rate > 1_000_000) throw new IllegalArgumentException("the schedule is longer than 11 days");
    }
}
