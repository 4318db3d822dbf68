import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/** Evaluates selectors with Apache's filter module: one JSON object a line in, one word a line out. */
public class Evaluate {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(JSON.parseObject(line)));
        }
    }

    private static String answer(JSONObject question) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(question.getString("expression"));
        } catch (Throwable refused) {
            return "REFUSED";
        }
        Map<String, Object> properties = new HashMap<>(question.getJSONObject("properties"));
        try {
            Object value = expression.evaluate(new Properties(properties));
            return value == null ? "NULL" : value.toString().toUpperCase();
        } catch (Throwable raised) {
            return "RAISED";
        }
    }

    private record Properties(Map<String, Object> values) implements EvaluationContext {
        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }
}
