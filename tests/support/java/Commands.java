// Runs one of Kafka's command line tools many times in one JVM: a line of standard input is one call, its words are
// separated by tabs. A line with only the character 1 follows what each call printed.
// java -cp CLASSPATH Commands.java CLASS
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;

public class Commands {
    public static void main(String[] args) throws Exception {
        Method main = Class.forName(args[0]).getMethod("main", String[].class);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            main.invoke(null, (Object) line.split("\t"));
            System.out.println("\u0001");
        }
    }
}
