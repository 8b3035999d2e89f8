import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonPrimitive;
import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Date;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Values of AMQP to JSON and back: see ../values.py. A library adds the types that are its own. */
abstract class Values {
    static final HexFormat HEX = HexFormat.of();

    private static final Map<String, Class<?>> PRIMITIVES =
            Map.of(
                    "boolean", boolean.class,
                    "byte", byte.class,
                    "short", short.class,
                    "int", int.class,
                    "long", long.class,
                    "float", float.class,
                    "double", double.class,
                    "char", char.class);
    private static final Map<Class<?>, String> NAMES =
            Map.of(
                    Byte.class, "byte",
                    Short.class, "short",
                    Integer.class, "int",
                    Long.class, "long",
                    String.class, "string");

    /** Return a value of a type of the library. */
    abstract Object decodeOwn(String type, String text);

    /** Return the JSON of a value of a type of the library, or null. */
    abstract JsonArray encodeOwn(Object value);

    static JsonArray array(Object... values) {
        JsonArray array = new JsonArray();
        for (Object value : values) {
            if (value instanceof JsonElement found) {
                array.add(found);
            } else if (value instanceof Boolean found) {
                array.add(new JsonPrimitive(found));
            } else {
                array.add(value == null ? JsonNull.INSTANCE : new JsonPrimitive(value.toString()));
            }
        }
        return array;
    }

    Object decode(JsonElement json) {
        JsonArray typed = json.getAsJsonArray();
        String type = typed.get(0).getAsString();
        JsonElement second = typed.get(1);
        switch (type) {
            case "null":
                return null;
            case "list":
                return decodeList(second);
            case "map":
                return decodePairs(second);
            case "array":
                return decodeArray(second.getAsString(), typed.get(2).getAsJsonArray());
            default:
                return decodeScalar(type, second.getAsString());
        }
    }

    List<Object> decodeList(JsonElement values) {
        var list = new ArrayList<Object>();
        values.getAsJsonArray().forEach(each -> list.add(decode(each)));
        return list;
    }

    Map<Object, Object> decodePairs(JsonElement pairs) {
        var map = new LinkedHashMap<Object, Object>();
        for (JsonElement pair : pairs.getAsJsonArray()) {
            map.put(decode(pair.getAsJsonArray().get(0)), decode(pair.getAsJsonArray().get(1)));
        }
        return map;
    }

    private Object decodeArray(String type, JsonArray values) {
        var elements = new ArrayList<Object>();
        values.forEach(each -> elements.add(decode(array(type, each))));
        Class<?> kind = PRIMITIVES.get(type);
        Object found = Array.newInstance(kind == null ? elements.get(0).getClass() : kind,
                elements.size());
        for (int index = 0; index < elements.size(); index++) {
            Array.set(found, index, elements.get(index));
        }
        return found;
    }

    private Object decodeScalar(String type, String text) {
        return switch (type) {
            case "boolean" -> Boolean.parseBoolean(text);
            case "byte" -> Byte.parseByte(text);
            case "short" -> Short.parseShort(text);
            case "int" -> Integer.parseInt(text);
            case "long" -> Long.parseLong(text);
            case "float" -> Float.intBitsToFloat(Integer.parseUnsignedInt(text, 16));
            case "double" -> Double.longBitsToDouble(Long.parseUnsignedLong(text, 16));
            case "char" -> (char) Integer.parseInt(text);
            case "timestamp" -> new Date(Long.parseLong(text));
            case "uuid" -> {
                ByteBuffer octets = ByteBuffer.wrap(HEX.parseHex(text));
                yield new UUID(octets.getLong(), octets.getLong());
            }
            case "string" -> text;
            default -> decodeOwn(type, text);
        };
    }

    JsonArray encode(Object value) {
        if (value == null) {
            return array("null", null);
        }
        String name = NAMES.get(value.getClass());
        if (name != null) {
            return array(name, value);
        }
        if (value instanceof Boolean) {
            return array("boolean", value);
        }
        if (value instanceof Float found) {
            return array("float", HEX.toHexDigits(Float.floatToIntBits(found)));
        }
        if (value instanceof Double found) {
            return array("double", HEX.toHexDigits(Double.doubleToLongBits(found)));
        }
        if (value instanceof Character found) {
            return array("char", (int) found);
        }
        if (value instanceof Date found) {
            return array("timestamp", found.getTime());
        }
        if (value instanceof UUID found) {
            return array("uuid", found.toString().replace("-", ""));
        }
        if (value instanceof List<?> found) {
            return array("list", encodeList(found));
        }
        if (value instanceof Map<?, ?> found) {
            return array("map", encodePairs(found));
        }
        JsonArray own = encodeOwn(value);
        if (own != null) {
            return own;
        }
        return value.getClass().isArray()
                ? encodeArray(value)
                : array("unknown", value.getClass().getName());
    }

    JsonArray encodeList(Iterable<?> values) {
        var list = new JsonArray();
        values.forEach(each -> list.add(encode(each)));
        return list;
    }

    JsonArray encodePairs(Map<?, ?> map) {
        var pairs = new JsonArray();
        map.forEach((key, value) -> pairs.add(array(encode(key), encode(value))));
        return pairs;
    }

    private JsonArray encodeArray(Object found) {
        var values = new JsonArray();
        String type = "null";
        for (int index = 0; index < Array.getLength(found); index++) {
            JsonArray each = encode(Array.get(found, index));
            type = each.get(0).getAsString();
            values.add(each.get(1));
        }
        return array("array", type, values);
    }
}
