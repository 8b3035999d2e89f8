import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * What the Java clients share: one JSON object per line of standard input, one reply per line of
 * standard output. See ../clients.py for the commands and ../values.py for the form of values.
 */
final class Commands {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    interface Command {
        JsonObject run(Asked asked) throws Exception;
    }

    /** One command. The names are those of its JSON. */
    static final class Asked {
        String verb, address, outcome, selector, scenario, kind;
        int count, credit, frame_bytes;
        boolean drain, settled, second, failed, undeliverable;
        JsonArray messages;
    }

    private Commands() {}

    static void serve(Command command) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries print what they like
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject reply;
            try {
                reply = command.run(GSON.fromJson(line, Asked.class));
            } catch (Throwable error) { // a reply is owed for every line
                error.printStackTrace();
                reply = new JsonObject();
                reply.addProperty("error", error.toString());
            }
            out.println(GSON.toJson(reply));
        }
    }
}
