import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.thrift.TApplicationException;
import org.apache.thrift.protocol.TMultiplexedProtocol;
import org.apache.thrift.protocol.TProtocol;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import probe.Leaf;
import probe.Refused;
import probe.Tree;
import probe.Wider;

/**
 * Makes each kind of call with the Thrift library for Java, checks the replies, and says "ok NAME"
 * or "fail NAME why" of each: Client HOST PORT TRANSPORT PROTOCOL TAG
 */
public final class Client {
  private static final int TIMEOUT = 15000; // ms; long: the machine may be busy

  private interface Call {
    void on(Wider.Client client) throws Exception;
  }

  private static String tag;

  private static void check(boolean ok, String why) {
    if (!ok) {
      throw new IllegalStateException(why);
    }
  }

  private static void echo(Wider.Client client, String text) throws Exception {
    String got = client.echo(text);
    check(got.equals(text), "echo of " + text.length() + " bytes: got " + got.length());
  }

  private static void binary(Wider.Client client) throws Exception {
    byte[] data = new byte[1 << 20];
    for (int i = 0; i < data.length; i++) {
      data[i] = (byte) (i * 31 + (i >> 8));
    }
    byte[] mark = tag.getBytes(StandardCharsets.UTF_8);
    System.arraycopy(mark, 0, data, 0, mark.length);
    ByteBuffer got = client.echoBinary(ByteBuffer.wrap(data));
    check(got.equals(ByteBuffer.wrap(data)), "echo of a MiB: got " + got.remaining() + " others");
  }

  private static Leaf leaf(int i) {
    return new Leaf(i, tag + " größe " + i, i % 2 == 0, i / 4.0);
  }

  private static void tree(Wider.Client client) throws Exception {
    List<Leaf> leaves = new ArrayList<>();
    for (int i = 0; i < 300; i++) {
      leaves.add(leaf(i));
    }
    Tree want =
        new Tree(
            leaf(-1),
            Map.of("", leaf(0), tag, leaf(1)),
            leaves,
            Map.of(-1, List.of(), 7, List.of(1L, -1L, 1L << 40)),
            new HashSet<>(Arrays.asList((short) 3, (short) -300)),
            ByteBuffer.wrap(new byte[] {0, -1, -128, 1}),
            (byte) -8);
    check(client.echoTree(want).equals(want), "echo of another tree");
  }

  private static void refuse(Wider.Client client) throws Exception {
    try {
      client.refuse(tag);
    } catch (Refused e) {
      check(e.code == 7 && e.why.equals(tag), "another refusal: " + e);
      return;
    }
    check(false, "not refused");
  }

  private static void unknown(Wider.Client client) throws Exception {
    String got;
    try {
      got = client.absent(tag);
    } catch (TApplicationException e) {
      // The library for Node.js tells the type only in words.
      boolean named = e.getMessage() != null && e.getMessage().contains("absent");
      check(named && e.getType() <= TApplicationException.UNKNOWN_METHOD, "another one: " + e);
      return;
    }
    check(false, "an answer: " + got);
  }

  /**
   * Fires n times. The calls may take effect after the next call has been answered, but not twice.
   */
  private static void oneway(Wider.Client client, String key, int n) throws Exception {
    for (int i = 0; i < n; i++) {
      client.fire(key);
    }
    long end = System.currentTimeMillis() + TIMEOUT;
    int got;
    while ((got = client.fired(key)) != n && System.currentTimeMillis() < end) {
      Thread.sleep(5);
    }
    check(got == n, "fired " + n + " times, came in " + got + " times");
  }

  private static Map<String, Call> calls() {
    Map<String, Call> calls = new LinkedHashMap<>();
    calls.put("string-0", c -> echo(c, ""));
    calls.put("string-7", c -> echo(c, tag));
    calls.put("string-70000", c -> echo(c, tag.repeat(10000)));
    calls.put("binary", Client::binary);
    calls.put("tree", Client::tree);
    calls.put("exception", Client::refuse);
    calls.put("void", c -> c.ping());
    calls.put("oneway", c -> oneway(c, tag + " one", 1));
    calls.put("oneways", c -> oneway(c, tag + " five", 5));
    calls.put("unknown", Client::unknown);
    calls.put("last", c -> echo(c, tag + " last"));
    return calls;
  }

  public static void main(String[] args) {
    String transport = args[2];
    tag = args[4];
    TTransport trans = null;
    Wider.Client client = null;
    for (Map.Entry<String, Call> call : calls().entrySet()) {
      try {
        if (client == null) {
          TSocket socket = new TSocket(args[0], Integer.parseInt(args[1]), TIMEOUT);
          trans = Form.transports(transport).getTransport(socket);
          trans.open();
          TProtocol protocol = Form.protocols(args[3]).getProtocol(trans);
          if (transport.equals("multiplexed")) {
            protocol = new TMultiplexedProtocol(protocol, "Probe");
          }
          client = new Wider.Client(protocol);
        }
        call.getValue().on(client);
        System.out.println("ok " + call.getKey());
      } catch (Exception e) {
        System.out.println("fail " + call.getKey() + " " + e);
        if (trans != null) {
          trans.close();
        }
        client = null; // the next call has a connection of its own
      }
    }
    if (trans != null) {
      trans.close();
    }
  }
}
