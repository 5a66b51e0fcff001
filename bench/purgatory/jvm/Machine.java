import com.sun.management.GarbageCollectionNotificationInfo;
import com.sun.management.GcInfo;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;
import java.lang.management.MemoryUsage;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.atomic.LongAccumulator;
import javax.management.NotificationEmitter;
import javax.management.openmbean.CompositeData;

/** Resources of a run: CPU time of this process, of others and of the host, garbage collections, and heap. */
final class Machine {
    private static final int TICKS_PER_S = 100;

    private final LongAccumulator heapPeak = new LongAccumulator(Math::max, 0);
    private final LongAccumulator livePeak = new LongAccumulator(Math::max, 0);
    private final LongAccumulator longestPauseMs = new LongAccumulator(Math::max, 0);

    record Usage(double processS, double machineS, double stolenS, long collections, long pausesMs) {
        Usage since(Usage before) {
            return new Usage(processS - before.processS, machineS - before.machineS, stolenS - before.stolenS,
                collections - before.collections, pausesMs - before.pausesMs);
        }
    }

    Machine() {
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans())
            ((NotificationEmitter) collector).addNotificationListener((notification, unused) -> {
                if (notification.getType().equals(GarbageCollectionNotificationInfo.GARBAGE_COLLECTION_NOTIFICATION))
                    hasCollected(GarbageCollectionNotificationInfo.from((CompositeData) notification.getUserData()).getGcInfo());
            }, null, null);
    }

    private void hasCollected(GcInfo collection) {
        heapPeak.accumulate(heapOf(collection.getMemoryUsageBeforeGc()));
        livePeak.accumulate(heapOf(collection.getMemoryUsageAfterGc()));
        longestPauseMs.accumulate(collection.getDuration());
    }

    private static long heapOf(Map<String, MemoryUsage> pools) {
        return ManagementFactory.getMemoryPoolMXBeans().stream()
            .filter(pool -> pool.getType() == MemoryType.HEAP)
            .map(MemoryPoolMXBean::getName)
            .filter(pools::containsKey)
            .mapToLong(name -> pools.get(name).getUsed())
            .sum();
    }

    void forgetPeaks() {
        heapPeak.reset();
        livePeak.reset();
        longestPauseMs.reset();
    }

    /** Samples the heap; call it often, because the heap grows between collections. */
    void lookAtHeap() {
        heapPeak.accumulate(ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed());
    }

    long heapPeakBytes() {
        return heapPeak.get();
    }

    /** The highest level after a collection, about the size of live objects. */
    long livePeakBytes() {
        return livePeak.get();
    }

    long longestPauseMs() {
        return longestPauseMs.get();
    }

    static Usage usage() {
        long count = 0;
        long pausesMs = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            count += collector.getCollectionCount();
            pausesMs += collector.getCollectionTime();
        }
        double processS = ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
        return new Usage(processS, processorS(1, 2, 3, 6, 7), processorS(8), count, pausesMs);
    }

    /** Returns fields of the first line of /proc/stat in seconds, 0 without the file. */
    private static double processorS(int... fields) {
        try {
            String[] words = Files.readAllLines(Path.of("/proc/stat")).get(0).split("\\s+");
            double ticks = 0;
            for (int field : fields) ticks += Double.parseDouble(words[field]);
            return ticks / TICKS_PER_S;
        } catch (IOException missing) {
            return 0;
        }
    }
}
