// Runner of main methods, such as those of Kafka's tools, one after another in one JVM.
//
// A request on standard input and its response on standard output are items: an int32 length, then that many bytes.
// Request: the number of words as text, the words (a class and its arguments), the standard input of the tool.
// Response: the exit status as text, the standard output, the standard error. The JVM ends when its input is closed.
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

public class ToolServer {
    private static volatile CompletableFuture<Integer> status;

    public static void main(String[] args) throws Exception {
        DataInputStream requests = new DataInputStream(System.in);
        DataOutputStream responses = new DataOutputStream(System.out);
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        while (true) {
            String[] words;
            try {
                words = new String[Integer.parseInt(text(item(requests)))];
            } catch (EOFException ended) {
                Runtime.getRuntime().halt(0);
                return;
            }
            for (int n = 0; n < words.length; n++) words[n] = text(item(requests));
            ByteArrayOutputStream output = new ByteArrayOutputStream(), errors = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(item(requests)));
            System.setOut(new PrintStream(output, true));
            System.setErr(new PrintStream(errors, true));
            byte[] code = Integer.toString(run(words)).getBytes(StandardCharsets.UTF_8);
            for (byte[] item : List.of(code, output.toByteArray(), errors.toByteArray())) {
                responses.writeInt(item.length);
                responses.write(item);
            }
            responses.flush();
        }
    }

    private static int run(String[] words) throws Exception {
        Set<Thread> hooks = Set.copyOf(shutdownHooks());
        status = new CompletableFuture<>();
        CompletableFuture<Integer> ended = status;
        Thread tool = new Thread(() -> {
            try {
                Object arguments = Arrays.copyOfRange(words, 1, words.length);
                Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
                ended.complete(0);
            } catch (InvocationTargetException failure) {
                failure.getCause().printStackTrace();
                ended.complete(1);
            } catch (ReflectiveOperationException failure) {
                failure.printStackTrace();
                ended.complete(1);
            }
        });
        tool.setDaemon(true);
        tool.start();
        int code = ended.join();
        for (Thread hook : List.copyOf(shutdownHooks())) {
            if (hooks.contains(hook)) continue;
            Runtime.getRuntime().removeShutdownHook(hook);
            hook.start();
            hook.join();
        }
        return code;
    }

    // Needs --add-opens java.base/java.lang=ALL-UNNAMED
    @SuppressWarnings("unchecked")
    private static Set<Thread> shutdownHooks() throws ReflectiveOperationException {
        Field hooks = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        hooks.setAccessible(true);
        return ((Map<Thread, Thread>) hooks.get(null)).keySet();
    }

    // As in a process that exits, the calling thread runs nothing afterwards.
    private static void end(int code) {
        status.complete(code);
        while (true) LockSupport.park();
    }

    private static byte[] item(DataInputStream stream) throws IOException {
        byte[] bytes = new byte[stream.readInt()];
        stream.readFully(bytes);
        return bytes;
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
